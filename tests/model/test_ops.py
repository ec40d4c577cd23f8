"""The operations one by one, against their definitions in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from model import ops

SLABS = ops.WIDENED_ELEMENTS // 512 + 300
"""Outputs of a matrix that has to be widened in more than one piece."""


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def close(actual: Tensor, wanted: Tensor, *, atol: float = 1e-5) -> None:
    torch.testing.assert_close(actual.double(), wanted.double(), rtol=1e-5, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_outputs", [7, SLABS])
@pytest.mark.parametrize("biased", [True, False])
def test_linear_is_exact_to_float32(dtype: torch.dtype, num_outputs: int, biased: bool) -> None:
    """On a CPU narrow weights lose nothing beyond their own rounding, in one piece or several."""
    x, weight = random(3, 512), random(num_outputs, 512, seed=1).to(dtype)
    bias = random(num_outputs, seed=2) if biased else None
    wanted = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    with torch.no_grad():
        close(ops.linear(x, weight, bias), wanted, atol=1e-4)


def test_linear_hardly_depends_on_the_rows_beside() -> None:
    """A row alone and among others differs by float32 rounding, also with bfloat16 weights."""
    x, weight = random(33, 512), random(SLABS, 512, seed=1).bfloat16()
    with torch.no_grad():
        together = ops.linear(x, weight)
        for row in (0, 32):
            close(ops.linear(x[row : row + 1], weight), together[row : row + 1], atol=1e-4)


def test_linear_is_differentiable_with_narrow_weights() -> None:
    """Gradients reach the input through weights that had to be widened."""
    x, weight = random(2, 512).requires_grad_(), random(SLABS, 512, seed=1).bfloat16()
    ops.linear(x, weight).sum().backward()
    assert x.grad is not None
    close(x.grad, weight.double().sum(0).expand(2, -1), atol=1e-3)


def test_embedding_gives_float32_on_a_cpu() -> None:
    """Rows of a bfloat16 table come out as float32, unchanged."""
    weight = random(5, 4).bfloat16()
    out = ops.embedding(torch.tensor([3, 0, 3]), weight)
    assert out.dtype == torch.float32
    assert torch.equal(out, weight[[3, 0, 3]].float())


def test_rms_norm_equals_its_formula() -> None:
    """The norm is x / sqrt(mean(x^2) + eps) * weight."""
    x, weight = random(4, 2, 9), random(9, seed=1)
    wide = x.double()
    wanted = wide / (wide.square().mean(-1, keepdim=True) + 0.1).sqrt() * weight
    close(ops.rms_norm(x, weight, eps=0.1), wanted)


def test_layer_norm_equals_its_formula() -> None:
    """The norm is (x - mean) / sqrt(variance + eps) * weight + bias."""
    x, weight, bias = random(4, 9), random(9, seed=1), random(9, seed=2)
    wide = x.double()
    centred = wide - wide.mean(-1, keepdim=True)
    wanted = centred / (centred.square().mean(-1, keepdim=True) + 0.1).sqrt() * weight + bias
    close(ops.layer_norm(x, weight, bias, eps=0.1), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_and_rotary_keep_the_dtype(dtype: torch.dtype) -> None:
    """Activations come back as narrow as they came, computed in float32 in between."""
    x, weight = random(4, 2, 8).to(dtype), random(8, seed=1)
    table = random(4, 4, seed=2)
    for narrow, wide in (
        (ops.rms_norm(x, weight, eps=1e-6), ops.rms_norm(x.float(), weight, eps=1e-6)),
        (
            ops.layer_norm(x, weight, weight, eps=1e-6),
            ops.layer_norm(x.float(), weight, weight, eps=1e-6),
        ),
        (
            ops.rotary(x, torch.arange(4), cos=table, sin=table),
            ops.rotary(x.float(), torch.arange(4), cos=table, sin=table),
        ),
    ):
        assert narrow.dtype == dtype
        assert torch.equal(narrow, wide.to(dtype))


def test_rotary_is_a_rotation_of_complex_numbers() -> None:
    """Components i and i + D/2 are a complex number, turned by its position's angle."""
    x, angles = random(5, 3, 8), random(20, 4, seed=1)
    positions = torch.tensor([0, 19, 3, 3, 7])
    out = ops.rotary(x, positions, cos=angles.cos(), sin=angles.sin())
    numbers = x[..., :4].numpy() + 1j * x[..., 4:].numpy()
    turned = numbers * np.exp(1j * angles[positions].numpy())[:, None]
    close(out, torch.from_numpy(np.concatenate((turned.real, turned.imag), axis=-1)))


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh"])
def test_activations_equal_their_formulas(kind: str) -> None:
    """silu, gelu and its tanh approximation, alone and as a gate."""

    def formula(x: float) -> float:
        if kind == "silu":
            return x / (1 + math.exp(-x))
        if kind == "gelu":
            return x * (1 + math.erf(x / math.sqrt(2))) / 2
        return x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2

    x, up = torch.linspace(-6, 6, 41), random(41)
    wanted = torch.tensor([formula(value) for value in x.tolist()], dtype=torch.float64)
    close(ops.activate(x, kind=kind), wanted, atol=1e-6)
    close(ops.gated_activation(x, up, kind=kind), wanted * up, atol=1e-5)
