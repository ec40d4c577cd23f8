"""DenseMatrix: a weight matrix on a GPU, several of a layer's in one, multiplied by cuBLAS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional


class DeviceMatrix(Protocol):
    """What multiplies activations (N, in) to (N, out), in their dtype, plus its bias."""

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply."""


@dataclass(frozen=True, slots=True)
class DenseMatrix:
    """A matrix (out, in) of floats with its bias (out,), if it has one, of the same dtype."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply x (N, in): (N, out)."""
        return functional.linear(x, self.weight, self.bias)

    def in_float32(self, x: Tensor) -> Tensor:
        """Multiply x (N, in): (N, out) float32, summed and kept in it where the device can."""
        if x.dtype != torch.float32 and x.is_cuda:
            return torch.mm(x, self.weight.T, out_dtype=torch.float32)
        return functional.linear(x, self.weight).float()


def fused(weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> DenseMatrix:
    """Put matrices with the same inputs one under the other, so that one product does for all."""
    weight = weights[0] if len(weights) == 1 else torch.cat(list(weights))
    present = [bias for bias in biases if bias is not None]
    assert len(present) in (0, len(weights)), "either all have a bias or none"
    bias = torch.cat(present).to(weight.dtype) if present else None
    return DenseMatrix(weight, bias)
