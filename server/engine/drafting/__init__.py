"""Speculative decoding: tokens guessed ahead, checked in the same pass, and never trusted."""
