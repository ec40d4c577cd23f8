"""The small kernels, interpreted, have the bits of the readable operations."""

from __future__ import annotations

import interpreted  # noqa: F401 - before anything of model.cuda
import pytest
import torch

from model import ops
from model.cuda.kernels import layer_kernels
from model.cuda.operations import EmbeddingTable, NormWeights, activated

DTYPES = [torch.float32, torch.bfloat16]


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def close(out: torch.Tensor, wanted: torch.Tensor) -> None:
    """Equal but for the last bit of the dtype."""
    assert out.dtype == wanted.dtype
    torch.testing.assert_close(
        out, wanted, rtol=2**-7 if out.dtype == torch.bfloat16 else 1e-5, atol=1e-5
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [64, 576])
def test_a_sum_is_normalised_and_kept(dtype, width):
    """The residual takes what is added, rounded once; the norm is of that."""
    x, residual, weight = (
        random(5, width, dtype=dtype),
        random(5, width, dtype=dtype) / 3,
        (random(width)),
    )
    wanted_sum = x + residual
    normed = NormWeights(weight, None, 1e-5)(residual, x)
    assert torch.equal(residual, wanted_sum)
    close(normed, ops.rms_norm(wanted_sum, weight, eps=1e-5))


def test_a_layer_norm_takes_the_mean_off():
    """With a bias the norm is to mean 0 and variance 1."""
    x, weight, bias = random(5, 96) + 3, random(96), random(96) / 2
    kept = x.clone()
    close(NormWeights(weight, bias, 1e-5)(x), ops.layer_norm(x, weight, bias, eps=1e-5))
    assert torch.equal(x, kept)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("gated", [True, False])
def test_activations(dtype, kind, gated):
    """Gated by the first half of a row, or alone."""
    x = random(3, 2 * 80, dtype=dtype)
    gate, up = x.chunk(2, dim=1)
    wanted = ops.gated_activation(gate, up, kind=kind) if gated else ops.activate(x, kind=kind)
    close(activated(x, kind=kind, gated=gated), wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_embeddings(dtype):
    """A token's row, scaled, and its position's on top."""
    table, places = random(9, 70, dtype=dtype), random(6, 70, dtype=dtype)
    ids, positions = torch.tensor([8, 0, 3]).int(), torch.tensor([5, 1, 0]).int()
    assert torch.equal(EmbeddingTable(table, 1.0, None)(ids, positions), table[ids])
    scaled = table[ids] * 3.3
    assert torch.equal(EmbeddingTable(table, 3.3, None)(ids, positions), scaled)
    both = EmbeddingTable(table, 3.3, places)(ids, positions)
    assert torch.equal(both, scaled + places[positions])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [True, False])
def test_heads_are_turned_and_written(dtype, normed):
    """Queries go on, keys and values to their slots, with the bits of the readable operations."""
    rows, heads, kv_heads, size = 7, 6, 2, 48
    qkv = random(rows, (heads + 2 * kv_heads) * size, dtype=dtype)
    positions, slots = torch.arange(rows).flip(0).int() * 3, torch.randperm(64)[:rows].int()
    angles = torch.outer(torch.arange(100.0), torch.rand(size // 2))
    cos, sin = angles.cos(), angles.sin()
    q_weight, k_weight = random(size), random(size) / 2
    keys, values = (torch.zeros(64, kv_heads, size, dtype=dtype) for _ in range(2))
    out = torch.empty(rows, heads, size, dtype=dtype)
    layer_kernels.turn_and_write[rows, heads + 2 * kv_heads](
        qkv, positions, slots, cos, sin, q_weight, k_weight, out, keys, values, 1e-6,
        HEADS=heads, KV_HEADS=kv_heads, D=size, HALF_ROOM=32, TURNED=True, NORMED=normed,
    )  # fmt: skip
    q, k, v = (
        part.view(rows, -1, size)
        for part in qkv.split([heads * size, kv_heads * size, kv_heads * size], 1)
    )
    if normed:
        q, k = ops.rms_norm(q, q_weight, eps=1e-6), ops.rms_norm(k, k_weight, eps=1e-6)
    wanted_q, wanted_k = (ops.rotary(x, positions.long(), cos=cos, sin=sin) for x in (q, k))
    close(out, wanted_q)
    close(keys[slots], wanted_k)
    assert torch.equal(values[slots], v)
    untouched = torch.ones(64, dtype=torch.bool)
    untouched[slots] = False
    assert not keys[untouched].any()
