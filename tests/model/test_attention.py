"""The attention reference against NumPy in float64 and against torch, and the layer around it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from paged import PagedCache
from torch import Tensor, nn
from torch.nn import functional

from cache.pool import KVCachePool
from model.attention import CausalMultiHeadAttention, scaled_dot_product_attention
from model.config import ModelConfig
from model.layers import RotaryEmbedding
from model.pass_context import PassContext
from model.rotary import RotaryConfig
from model.torch_attention import TorchAttention


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=dtype)


def numpy_attention(
    q: Tensor, k: Tensor, v: Tensor, visible: NDArray[np.bool_], scale: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """One query at a time, as the formula reads; q (H, T, D), k and v (Hkv, S, D)."""
    (num_heads, num_queries, _), num_keys = q.shape, k.shape[1]
    group = num_heads // k.shape[0]
    weights = np.zeros((num_heads, num_queries, num_keys))
    out = np.zeros((num_heads, num_queries, v.shape[2]))
    for head in range(num_heads):
        keys, values = k[head // group].numpy(), v[head // group].numpy()
        for i in range(num_queries):
            seen = [j for j in range(num_keys) if visible[i, j]]
            if seen:
                scores = np.array([scale * (q[head, i].numpy() @ keys[j]) for j in seen])
                exponents = np.exp(scores - scores.max())
                weights[head, i, seen] = exponents / exponents.sum()
            out[head, i] = weights[head, i] @ values
    return out, weights


def assert_equal(actual: Tensor, wanted: Any) -> None:
    torch.testing.assert_close(actual, torch.as_tensor(wanted), rtol=1e-9, atol=1e-12)


@given(
    heads=st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 1)]),
    sizes=st.tuples(st.integers(1, 7), st.integers(1, 9), st.integers(1, 5)),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 9),
    length=st.none() | st.integers(0, 9),
    scale=st.none() | st.floats(0.1, 3),
    seed=st.integers(0, 1000),
)
@settings(max_examples=100, deadline=None)
def test_every_restriction_together_equals_numpy(
    heads: tuple[int, int],
    sizes: tuple[int, int, int],
    causal: bool,
    window: int | None,
    length: int | None,
    scale: float | None,
    seed: int,
) -> None:
    """Output and weights are those of the formula under any mix of restrictions and sizes."""
    num_queries, num_keys, head_dim = sizes
    q = random(heads[0], num_queries, head_dim, seed=seed)
    k = random(heads[1], num_keys, head_dim, seed=seed + 1)
    v = random(heads[1], num_keys, head_dim + 1, seed=seed + 2)
    mask = torch.rand(num_queries, num_keys, generator=torch.Generator().manual_seed(seed)) < 0.8
    visible = mask.numpy().copy()
    for i in range(num_queries):
        for j in range(num_keys):
            distance = num_keys - num_queries + i - j
            visible[i, j] &= not causal or distance >= 0
            visible[i, j] &= window is None or abs(distance) < window
            visible[i, j] &= length is None or j < length
    out, weights = scaled_dot_product_attention(
        q,
        k,
        v,
        mask=mask,
        causal=causal,
        window=window,
        key_lengths=None if length is None else torch.full((heads[0],), length),
        scale=scale,
    )
    default = head_dim**-0.5
    wanted = numpy_attention(q, k, v, visible, default if scale is None else scale)
    assert_equal(out, wanted[0])
    assert_equal(weights, wanted[1])


@pytest.mark.parametrize("shape", [(5, 3), (4, 5, 3), (2, 4, 5, 3), (2, 3, 4, 5, 3)])
def test_leading_axes_are_independent(shape: tuple[int, ...]) -> None:
    """Heads and batches, in any number of axes, equal the unbatched form one by one."""
    q, k, v = (random(*shape, seed=i) for i in range(3))
    out, weights = scaled_dot_product_attention(q, k, v, causal=True)
    flat = [t.reshape(-1, 5, 3) for t in (q, k, v, out)]
    for q1, k1, v1, out1 in zip(*flat, strict=True):
        assert_equal(out1, scaled_dot_product_attention(q1, k1, v1, causal=True)[0])
    assert weights.shape == (*shape[:-1], 5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_equals_torch_function(causal: bool, kv_heads: int) -> None:
    """Batched, grouped and causal attention is that of torch's own function."""
    q, k, v = random(3, 4, 6, 8), random(3, kv_heads, 6, 8, seed=1), random(3, kv_heads, 6, 8)
    wanted = functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    assert_equal(scaled_dot_product_attention(q, k, v, causal=causal)[0], wanted)


@pytest.mark.parametrize("mask_shape", [(5, 7), (7,), (1, 1, 7), (3, 1, 1, 7), (4, 1, 7), (5, 1)])
@pytest.mark.parametrize("kind", ["boolean", "additive"])
def test_masks_broadcast_as_in_torch(mask_shape: tuple[int, ...], kind: str) -> None:
    """Boolean (True may be seen) and additive masks of any broadcast shape act as in torch."""
    q, k, v = random(3, 4, 5, 2), random(3, 4, 7, 2, seed=1), random(3, 4, 7, 2, seed=2)
    mask = random(*mask_shape, seed=3)
    mask = mask > -1 if kind == "boolean" else mask
    if mask_shape == (5, 1) and kind == "boolean":
        mask[:] = True
    wanted = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask.expand(3, 4, 5, 7))
    assert_equal(scaled_dot_product_attention(q, k, v, mask=mask)[0], wanted)


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_equals_torch_multihead_attention(cross: bool, padded: bool) -> None:
    """With its projections, self and cross attention are those of nn.MultiheadAttention."""
    torch.manual_seed(0)
    module = nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64)
    x = random(2, 5, 12)
    memory = random(2, 7, 12, seed=1) if cross else x
    lengths = torch.tensor([3, memory.shape[1]]) if padded else None
    ignored = None if lengths is None else torch.arange(memory.shape[1]) >= lengths[:, None]
    wanted, wanted_weights = module(
        x, memory, memory, key_padding_mask=ignored, average_attn_weights=False
    )
    sources = (x, memory, memory)
    heads = [
        functional.linear(source, weight, bias).unflatten(-1, (3, 4)).transpose(1, 2)
        for source, weight, bias in zip(
            sources, module.in_proj_weight.chunk(3), module.in_proj_bias.chunk(3), strict=True
        )
    ]
    out, weights = scaled_dot_product_attention(*heads, key_lengths=lengths)
    assert_equal(module.out_proj(out.transpose(1, 2).flatten(2)), wanted)
    assert_equal(weights, wanted_weights)


def test_no_output_depends_on_later_tokens() -> None:
    """The derivative of a causal output by later keys and values is exactly zero."""

    def outputs(k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(random(6, 3), k, v, causal=True)[0].sum(-1)

    by_key, by_value = torch.autograd.functional.jacobian(
        outputs, (random(6, 3, seed=1), random(6, 3, seed=2))
    )
    for derivative in (by_key.abs().sum(-1), by_value.abs().sum(-1)):
        assert torch.equal(derivative.triu(1), torch.zeros(6, 6, dtype=torch.float64))
        assert (derivative.diagonal()[1:] > 0).all()


def test_weights_form_a_triangle_of_rows_that_sum_to_one() -> None:
    """Causal weights are zero above the diagonal and each row is a distribution."""
    q = random(4, 8, 8)
    _, weights = scaled_dot_product_attention(q, q, q, causal=True)
    assert torch.equal(weights, weights.tril())
    assert_equal(weights.sum(-1), torch.ones(4, 8, dtype=torch.float64))


def test_fewer_queries_than_keys_are_the_last_ones() -> None:
    """Causal attention of the last tokens equals the last rows of the whole sequence."""
    q, k, v = random(2, 9, 4), random(2, 9, 4, seed=1), random(2, 9, 4, seed=2)
    whole, _ = scaled_dot_product_attention(q, k, v, causal=True, window=5)
    last, _ = scaled_dot_product_attention(q[:, 6:], k, v, causal=True, window=5)
    assert_equal(last, whole[:, 6:])


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("kind", ["boolean", "additive", "lengths"])
def test_wholly_masked_rows_are_zero_and_so_are_their_gradients(kind: str) -> None:
    """A query that sees nothing yields zeros, and nothing in the backward pass is NaN."""
    q, k, v = (random(2, 4, 3, seed=i).requires_grad_() for i in range(3))
    mask, lengths = None, None
    if kind == "lengths":
        lengths = torch.tensor([0, 4])
    else:
        mask = torch.ones(2, 4, 4, dtype=torch.bool)
        mask[0] = False
        mask = mask if kind == "boolean" else torch.zeros(2, 4, 4).masked_fill(~mask, -torch.inf)
    out, weights = scaled_dot_product_attention(q, k, v, mask=mask, key_lengths=lengths)
    assert not out[0].any()
    assert not weights[0].any()
    assert out[1].all()
    with torch.autograd.detect_anomaly(check_nan=True):
        out.sum().backward()
    for tensor in (q, k, v):
        assert not tensor.grad[0].any()
        assert tensor.grad.isfinite().all()


@pytest.mark.parametrize("options", [{}, {"causal": True, "window": 2}, {"scale": 0.7}])
def test_gradients_are_those_of_finite_differences(options: dict[str, Any]) -> None:
    """First and second derivatives of output and weights pass torch's gradient check."""
    q, k, v = random(4, 4, 3), random(2, 4, 3, seed=1), random(2, 4, 3, seed=2)
    mask = torch.tensor([[False] * 4, [True, False, True, True], [True] * 4, [True] * 4])

    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return scaled_dot_product_attention(q, k, v, mask=mask, **options)

    inputs = [t.requires_grad_() for t in (q, k, v)]
    assert torch.autograd.gradcheck(attend, inputs)
    assert torch.autograd.gradgradcheck(attend, inputs)


def test_additive_mask_is_differentiable() -> None:
    """A learned bias of the scores receives its gradient."""
    q, bias = random(3, 4, 2), random(3, 4, 4, seed=5).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda mask: scaled_dot_product_attention(q, q, q, mask=mask, causal=True), [bias]
    )


def test_dropout_acts_in_training_only() -> None:
    """In training a share p of the weights is zero and the rest is divided by 1 - p."""
    q = random(8, 40, 4)
    plain, weights = scaled_dot_product_attention(q, q, q)
    evaluated, _ = scaled_dot_product_attention(q, q, q, dropout=0.25)
    assert torch.equal(evaluated, plain)
    torch.manual_seed(0)
    out, dropped = scaled_dot_product_attention(q, q, q, dropout=0.25, training=True)
    kept = dropped != 0
    assert abs(kept.double().mean().item() - 0.75) < 0.02
    assert_equal(dropped[kept], weights[kept] / 0.75)
    assert_equal(out, dropped @ q)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_single(dtype: torch.dtype) -> None:
    """Half-precision inputs give the float32 result, rounded once."""
    q, k, v = (random(2, 6, 8, seed=i).to(dtype) for i in range(3))
    wide, _ = scaled_dot_product_attention(q.float(), k.float(), v.float(), causal=True)
    out, weights = scaled_dot_product_attention(q, k, v, causal=True)
    assert out.dtype == weights.dtype == dtype
    assert torch.equal(out, wide.to(dtype))


def test_mask_may_be_of_another_precision() -> None:
    """An additive mask in float64 beside float32 heads is taken as float32."""
    q, mask = random(3, 4, dtype=torch.float32), random(3, 3)
    out, _ = scaled_dot_product_attention(q, q, q, mask=mask)
    wanted = functional.scaled_dot_product_attention(q[None], q[None], q[None], mask.float())
    torch.testing.assert_close(out, wanted[0])


def test_huge_scores_do_not_overflow() -> None:
    """Scores of thousands give a one-hot row, not NaN."""
    q = torch.eye(3, dtype=torch.float32) * 300
    out, weights = scaled_dot_product_attention(q, q, q)
    assert torch.equal(weights, torch.eye(3))
    assert torch.equal(out, q)


@pytest.mark.parametrize(
    ("shapes", "options", "words"),
    [
        (((5, 3), (5, 4), (5, 4)), {}, ["head size", "q is 3", "k is 4"]),
        (((5, 3), (6, 3), (5, 3)), {}, ["axis -2", "is 6", "is 5"]),
        (((4, 5, 3), (3, 5, 3), (3, 5, 3)), {}, ["axis -3", "q is 4", "k, 3"]),
        (((4, 5, 3), (2, 5, 3), (4, 5, 3)), {}, ["axis -3", "k is 2", "v is 4"]),
        (((2, 4, 5, 3), (3, 4, 5, 3), (3, 4, 5, 3)), {}, ["axis 0", "q is 2", "k is 3"]),
        (((2, 4, 5, 3), (2, 4, 5, 3), (3, 4, 5, 3)), {}, ["axis 0", "k is 2", "v is 3"]),
        (((4, 5, 3), (5, 3), (5, 3)), {}, ["k has 2 axes", "q has 3"]),
        (((3,), (3,), (3,)), {}, ["q has 1 axes", "at least 2"]),
        (((5, 3),) * 3, {"mask": torch.ones(4, 5) > 0}, ["mask", "(4, 5)", "(5, 5)"]),
        (((5, 3),) * 3, {"mask": torch.ones(2, 5, 5) > 0}, ["mask", "(2, 5, 5)", "(5, 5)"]),
        (((5, 3),) * 3, {"mask": torch.ones(5, 5).long()}, ["mask", "int64", "bool"]),
        (((2, 5, 3),) * 3, {"key_lengths": torch.ones(3)}, ["key_lengths", "(3,)", "(2,)"]),
        (((5, 3),) * 3, {"window": 0}, ["window is 0", "at least 1"]),
        (((5, 3),) * 3, {"dropout": 1.0}, ["dropout is 1.0", "below 1"]),
    ],
)
def test_misfits_are_named(
    shapes: tuple[tuple[int, ...], ...], options: dict[str, Any], words: list[str]
) -> None:
    """Axes that do not fit are named with both sizes, and options with their bounds."""
    with pytest.raises(ValueError, match=r".") as caught:
        scaled_dot_product_attention(*(random(*shape) for shape in shapes), **options)
    for word in words:
        assert word in str(caught.value)


def layer_config(**changes: Any) -> ModelConfig:
    rotary = RotaryConfig(theta=100.0)
    fields: dict[str, Any] = {
        "architecture": "qwen3",
        "vocab_size": 10,
        "hidden_size": 24,
        "intermediate_size": 8,
        "num_layers": 1,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 4,
        "max_position_embeddings": 32,
        "windows": (5,),
        "rotaries": (rotary,),
        "attention_scale": 0.3,
        "qkv_bias": True,
        "output_bias": True,
        "qk_norm": "head",
    }
    return ModelConfig(**fields | changes)


def make_layer() -> CausalMultiHeadAttention:
    torch.manual_seed(0)
    config = layer_config()
    rotary = RotaryEmbedding(RotaryConfig(theta=100.0), head_dim=4, num_positions=32)
    layer = CausalMultiHeadAttention(config, 0, rotary=rotary, dtype=torch.float32)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(random(*parameter.shape, dtype=torch.float32))
    return layer


def test_layer_through_the_cache_equals_the_reference() -> None:
    """Projected, normalised and turned heads attend alike with and without a cache."""
    layer = make_layer()
    x, positions = random(17, 24, dtype=torch.float32), torch.arange(17)
    whole = layer(x, PassContext(positions))
    pool = KVCachePool(
        num_layers=1, num_blocks=12, block_size=2, num_kv_heads=2, head_dim=4, dtype=torch.float32
    )
    paged = PagedCache(pool, TorchAttention())
    for count in (6, 1, 1, 7, 2):
        start = paged.lengths.get("a", 0)
        view, at = paged.view({"a": count})
        with torch.no_grad():
            out = layer(x[start : start + count], PassContext(at, view))
        torch.testing.assert_close(out, whole[start : start + count], rtol=1e-4, atol=1e-4)


def test_layer_is_differentiable() -> None:
    """Every parameter of the layer, and its input, receives a finite gradient that is not zero."""
    layer = make_layer()
    x = random(9, 24, dtype=torch.float32).requires_grad_()
    layer(x, PassContext(torch.arange(9))).square().sum().backward()
    for tensor in (x, *layer.parameters()):
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()
        assert tensor.grad.any()


def test_layer_depends_on_distance_not_on_position() -> None:
    """With rotary alone, shifting all positions changes nothing."""
    layer = make_layer()
    x = random(9, 24, dtype=torch.float32)
    first, later = (
        layer(x, PassContext(positions)) for positions in (torch.arange(9), torch.arange(20, 29))
    )
    torch.testing.assert_close(first, later, rtol=1e-4, atol=1e-3)
