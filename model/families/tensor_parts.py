"""TensorPart: one of the Transformer's tensors inside a stored one, as plain data.

What families say of their files' tensors, and readers of files carry out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Rows = slice | npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TensorPart:
    """An expert of a stored tensor, turned over, some of its rows: in this order."""

    name: str
    """In the Transformer, or the stored one's own if the Transformer has no such tensor."""
    expert: int | None = None
    """Index on the first axis of a stored tensor that holds all experts of a layer."""
    transposed: bool = False
    """Whether the matrix is stored as (in, out)."""
    rows: Rows | None = None
    """Which rows, in which order; None is all as they are."""
    as_row: bool = False
    """Whether a vector is the only row of a matrix."""
    offset: float = 0.0
    """Added to every element."""

    def shape_of(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of this part of a tensor stored in that shape."""
        shape = stored if self.expert is None else stored[1:]
        shape = shape[::-1] if self.transposed else shape
        shape = (1, *shape) if self.as_row else shape
        if self.rows is None:
            return shape
        if isinstance(self.rows, slice):
            return (len(range(*self.rows.indices(shape[0]))), *shape[1:])
        return (len(self.rows), *shape[1:])


@dataclass(frozen=True, kw_only=True, slots=True)
class GGUFTensors:
    """What the tensors of a GGUF file say about its configuration."""

    names: frozenset[str] = frozenset()
    vectors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Values of small vectors that belong to no layer, such as rope_freqs.weight."""
