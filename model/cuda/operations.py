"""Operations: the small steps of a layer on a GPU, each one launch over torch tensors.

Gives the kernels of layer_kernels.py their shapes; keeps no state.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from model.cuda.kernels import layer_kernels

_BLOCK = 1024
"""Numbers of a row that one elementwise program has."""


@dataclass(frozen=True, slots=True)
class NormWeights:
    """A norm's weight and, where it takes the mean off, its bias; both float32."""

    weight: Tensor
    bias: Tensor | None
    eps: float

    def __call__(self, residual: Tensor, added: Tensor | None = None) -> Tensor:
        """Add to the residual (N, C) in place, if there is something, and normalise the sum."""
        (rows, width), out = residual.shape, torch.empty_like(residual)
        room = power_of_two(width)
        layer_kernels.add_norm[rows,](
            residual if added is None else added, residual, self.weight,
            self.weight if self.bias is None else self.bias, out, self.eps,
            C=width, C_ROOM=room, ADDS=added is not None, CENTRED=self.bias is not None,
            num_warps=4 if room <= 4096 else 16,
        )  # fmt: skip
        return out


@dataclass(frozen=True, slots=True)
class EmbeddingTable:
    """Token embeddings (V, C), their scale, and trained vectors of positions, if there are any."""

    weight: Tensor
    scale: float
    position_weight: Tensor | None

    def __call__(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Look up tokens (N,) at positions (N,): (N, C)."""
        width = self.weight.shape[1]
        out = torch.empty(len(ids), width, dtype=self.weight.dtype, device=self.weight.device)
        block = min(_BLOCK, power_of_two(width))
        positioned = self.position_weight is not None
        layer_kernels.embed[len(ids), -(-width // block)](
            ids, positions, self.weight,
            self.weight if self.position_weight is None else self.position_weight, out, self.scale,
            C=width, BLOCK=block, SCALED=self.scale != 1.0, POSITIONED=positioned,
        )  # fmt: skip
        return out


def activated(x: Tensor, *, kind: str, gated: bool) -> Tensor:
    """Activate x (N, I), or the first half of x (N, 2 I) times the second: (N, I)."""
    width = x.shape[1] // 2 if gated else x.shape[1]
    out = torch.empty(x.shape[0], width, dtype=x.dtype, device=x.device)
    block = min(_BLOCK, power_of_two(width))
    layer_kernels.activate[x.shape[0], -(-width // block)](
        x, out, WIDTH=width, BLOCK=block, KIND=kind, GATED=gated
    )
    return out


def power_of_two(number: int) -> int:
    """The least power of two that is no less."""
    return 1 << (number - 1).bit_length()
