"""One function per hot operation: the readable form of what a layer computes.

Everything the model computes more than once per layer goes through here. Matrices packed for the
native kernels are multiplied by them; all else is torch, the reference of the kernels and the path
where there are none. No state, no parameters, no knowledge of layers or files.

What is promised: on a CPU all arithmetic is float32, whatever the weights' dtype, so that a row's
result varies with the rows beside it by float32 rounding only. On a GPU activations have the
weights' dtype, and norms, rotary and softmax are computed in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from model.quantization import PackedLinear

Matrix = Tensor | PackedLinear
"""A weight matrix (out, in), as floats or packed for the native kernels."""

__all__ = [
    "Matrix",
    "activate",
    "activation_dtype",
    "embedding",
    "gated_activation",
    "layer_norm",
    "linear",
    "rms_norm",
    "rotary",
    "soft_cap",
]

SWIGLU_ALPHA, SWIGLU_LIMIT = 1.702, 7.0
"""Constants of the activation "clamped_swiglu"."""

WIDENED_ELEMENTS = 1 << 20
"""Weights turned to float32 at a time: 4 MB, which stays in the cache until it is multiplied."""


def activation_dtype(weight: Tensor) -> torch.dtype:
    """Return the dtype of the activations beside a weight: float32 on a CPU, else its own."""
    return torch.float32 if weight.device.type == "cpu" else weight.dtype


def embedding(ids: Tensor, weight: Matrix) -> Tensor:
    """Return the rows of weight (V, C) named by ids (N,), as activations (N, C)."""
    if isinstance(weight, PackedLinear):
        return weight.rows(ids)
    return functional.embedding(ids, weight).to(activation_dtype(weight))


def linear(x: Tensor, weight: Matrix, bias: Tensor | None = None) -> Tensor:
    """Return x (..., in) times weight (out, in) transposed, plus bias (out,), in x's dtype.

    A narrower weight is widened to x's dtype, never x narrowed: rounding activations to bfloat16
    would turn a difference of 1e-7 between two batches into one of 1e-2.
    """
    if isinstance(weight, PackedLinear):
        return weight.multiply(x, bias)
    bias = None if bias is None else bias.to(x.dtype)
    if weight.dtype == x.dtype:
        return functional.linear(x, weight, bias)
    if weight.numel() <= WIDENED_ELEMENTS or torch.is_grad_enabled():
        return functional.linear(x, weight.to(x.dtype), bias)
    num_outputs, num_inputs = weight.shape
    step = max(1, WIDENED_ELEMENTS // num_inputs)
    out = x.new_empty(*x.shape[:-1], num_outputs)
    for start in range(0, num_outputs, step):
        part = slice(start, start + step)
        out[..., part] = functional.linear(x, weight[part].to(x.dtype))
    return out if bias is None else out.add_(bias)


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Return x (..., C) over its root mean square, times weight (C,) (arXiv:1910.07467)."""
    return functional.rms_norm(x.float(), weight.shape, weight, eps).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """Return x (..., C) with mean 0 and variance 1, times weight plus bias (arXiv:1607.06450)."""
    return functional.layer_norm(x.float(), weight.shape, weight, bias, eps).to(x.dtype)


def rotary(x: Tensor, positions: Tensor, *, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (i, i + R/2) of each head by its position's angle (arXiv:2104.09864).

    Args:
        x: (N, H, D) queries or keys.
        positions: (N,) int64, below P.
        cos: (P, R/2) float32 cosines of the angles; of each head the first R dimensions turn.
        sin: (P, R/2) float32 sines.

    Returns:
        (N, H, D) in x's dtype.
    """
    half = cos.shape[-1]
    cos, sin = cos[positions, None], sin[positions, None]  # (N, 1, R/2)
    first, second, rest = x.float().tensor_split((half, 2 * half), dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)
    return turned.to(x.dtype)


def activate(x: Tensor, *, kind: str) -> Tensor:
    """Apply silu, gelu, or gelu_tanh, its approximation by a hyperbolic tangent."""
    if kind == "silu":
        return functional.silu(x)
    return functional.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")


def gated_activation(gate: Tensor, up: Tensor, *, kind: str) -> Tensor:
    """Return the activated gate times `up`, elementwise (Shazeer, arXiv:2002.05202).

    "clamped_swiglu" is gpt-oss's: both are held within +-7, the gate's sigmoid is steeper, and `up`
    is counted from -1.
    """
    if kind == "clamped_swiglu":
        gate, up = gate.clamp(max=SWIGLU_LIMIT), up.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)
        return gate * torch.sigmoid(SWIGLU_ALPHA * gate) * (up + 1)
    return activate(gate, kind=kind) * up


def soft_cap(x: Tensor, cap: float | None) -> Tensor:
    """Return cap x tanh(x / cap), or x itself without a cap (arXiv:2408.00118)."""
    return x if cap is None else cap * torch.tanh(x / cap)
