"""Pace: how much longer a step may take because prompts are read in it while others decode.

A rule over counts, not over clocks, so that the same requests always make the same steps. It knows
no requests; what it bounds is the gap between two tokens of a stream.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from model.cost import ForwardCost

_STEP_TOKENS: Mapping[str, float] = {"native": 6.0, "torch": 32.0, "cuda": 256.0}
"""Measured: how many tokens at once take twice as long as one. A step with fewer mostly reads
weights, or starts operations."""
_ATTENTION_SLOWNESS = 2.0
"""Measured: how much longer attention takes over an operation than a product of matrices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """Chunked-prefill budget: the cost of a step in tokens, and how far prompts may stretch it."""

    max_stretch: float = 4.0
    """How many times as long as with its decodes alone a step with prompts may take."""
    step_tokens: float = _STEP_TOKENS["torch"]
    """What a step costs before its first token."""
    context_tokens: float = math.inf
    """How many tokens before it make a token cost twice as much."""

    def cost(self, position: int, *, count: int = 1) -> float:
        """What computing the token at a position costs, or `count` tokens whose positions add up.

        Args:
            position: Of the token, or the sum of theirs.
            count: How many tokens.
        """
        return count + position / self.context_tokens

    def room(self, decodes: float) -> float:
        """Chunked-prefill budget of a step in which others decode.

        Args:
            decodes: What the tokens of those cost; 0 if there are none, and then nobody waits.
        """
        if not decodes:
            return math.inf
        return (self.max_stretch - 1.0) * (self.step_tokens + decodes)

    @staticmethod
    def of(cost: ForwardCost, *, path: str) -> Pace:
        """The pace of a model.

        Args:
            cost: Of its forward pass.
            path: What computes it: native, torch or cuda.
        """
        full_layers = sum(window is None for window in cost.windows)
        seen = 2 * cost.attention_width * full_layers * _ATTENTION_SLOWNESS
        context = cost.layer_parameters / seen if seen else math.inf
        return Pace(step_tokens=_STEP_TOKENS[path], context_tokens=context)
