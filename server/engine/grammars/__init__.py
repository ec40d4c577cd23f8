"""Grammars that constrain answers: checked in a process of their own, compiled, and followed."""
