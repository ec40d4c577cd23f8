"""PassTensors and PassContext: what a forward pass reads, and what its layers know of its rows.

One object goes through all layers, so that a new kind of fact is a field here and not a parameter
of every function on the way. Plain data; made by whoever runs the pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from cache.view import BatchLayout, CacheView


class PassTensors(NamedTuple):
    """The integers of one pass, on its device."""

    input_ids: Tensor
    """(N,) int64."""
    positions: Tensor
    """(N,) int64 where each token stands in its sequence."""
    layout: BatchLayout
    """Whose rows they are, and where their keys and values live."""


@dataclass(frozen=True, slots=True)
class PassContext:
    """The facts of one pass that are about its rows."""

    positions: Tensor
    """(N,) int64 where each token stands in its sequence."""
    kv: CacheView | None = None
    """The cache, which knows whose tokens these are and holds what came before; None means that
    the N tokens are one whole sequence."""
