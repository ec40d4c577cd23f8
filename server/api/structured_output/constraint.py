"""Constraint: a grammar that is still to be compiled, and the field that asked for it."""

from __future__ import annotations

from dataclasses import dataclass

from server.engine.grammars.grammar import GrammarSource


@dataclass(frozen=True, slots=True)
class Constraint:
    """Constraint on an answer's text."""

    source: GrammarSource
    param: str
    """The field that is at fault if it cannot be compiled."""
