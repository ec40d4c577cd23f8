"""FormStep: what one form of attention took for a new token, and how each form grows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

GROWTHS: Mapping[str, str] = {
    "recomputing everything": "O(n^2)",
    "full cache": "O(n)",
    "window": "O(w)",
    "linear state": "O(1)",
}
"""The four forms, and how a new token's cost grows in each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FormStep:
    """What one form took for a new token."""

    form: str
    length: int
    """Tokens of the text, the new one included."""
    step_ms: float
    num_bytes: int
    """What the form kept for it."""
