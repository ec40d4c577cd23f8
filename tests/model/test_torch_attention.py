"""The torch backend over awkwardly placed blocks, against the attention reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paged import PagedCache
from torch import Tensor

from cache.pool import KVCachePool
from model.attention import scaled_dot_product_attention
from model.torch_attention import TorchAttention

HEADS, KV_HEADS, HEAD_DIM, SCALE = 6, 2, 8, 0.4


def make_cache(block_size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> PagedCache:
    pool = KVCachePool(
        num_layers=2,
        num_blocks=256 // block_size * 2,
        block_size=block_size,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        dtype=dtype,
    )
    return PagedCache(pool, TorchAttention(), seed=seed)


class Sequences:
    """Queries, keys and values of several requests, and what the reference makes of them."""

    def __init__(self, count: int, length: int, dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(count)

        def draw(heads: int) -> Tensor:
            return torch.randn(count, length, heads, HEAD_DIM, generator=generator)

        self.q = draw(HEADS)
        self.k, self.v = draw(KV_HEADS).to(dtype), draw(KV_HEADS).to(dtype)

    def expected(self, window: int | None) -> Tensor:
        """(count, length, H, D), in float64."""
        out, _ = scaled_dot_product_attention(
            *(t.transpose(1, 2).double() for t in (self.q, self.k, self.v)),
            causal=True,
            window=window,
            scale=SCALE,
        )
        return out.transpose(1, 2)

    def step(self, cache: PagedCache, batch: dict[int, int], window: int | None) -> list[Tensor]:
        """Feed each numbered request some tokens through layer 1; returns their outputs."""
        starts = {i: cache.lengths.get(str(i), 0) for i in batch}
        view, _ = cache.view({str(i): n for i, n in batch.items()})

        def flat(source: Tensor) -> Tensor:
            return torch.cat([source[i, starts[i] : starts[i] + n] for i, n in batch.items()])

        view.update(1, flat(self.k), flat(self.v))
        out = view.attend(1, flat(self.q), scale=SCALE, window=window)
        return list(out.split(list(batch.values())))


@given(
    block_size=st.sampled_from([1, 2, 8, 32]),
    window=st.none() | st.integers(1, 40),
    decodes=st.lists(st.integers(0, 30), max_size=4),
    chunks=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 12)), max_size=3),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_ragged_batches_equal_the_reference(
    block_size: int,
    window: int | None,
    decodes: list[int],
    chunks: list[tuple[int, int]],
    seed: int,
) -> None:
    """Any mix of decodes and chunks, after any history, attends as each request alone."""
    plan = [(start, 1) for start in decodes] + chunks
    if not plan:
        return
    data, cache = Sequences(len(plan), 34), make_cache(block_size, seed=seed)
    for i, (start, _) in enumerate(plan):
        if start:
            data.step(cache, {i: start}, window)
    outs = data.step(cache, {i: count for i, (_, count) in enumerate(plan)}, window)
    expected = data.expected(window)
    for i, (start, count) in enumerate(plan):
        wanted = expected[i, start : start + count]
        torch.testing.assert_close(outs[i].double(), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("window", [None, 7])
def test_bfloat16_pool_is_read_in_float32(window: int | None) -> None:
    """A bfloat16 pool gives the exact attention over the rounded keys and values."""
    data, cache = Sequences(2, 30, torch.bfloat16), make_cache(4, torch.bfloat16)
    first = data.step(cache, {0: 29, 1: 12}, window)
    second = data.step(cache, {0: 1, 1: 1}, window)
    expected = data.expected(window)
    assert first[0].dtype == torch.float32
    for out, wanted in (
        (first[0], expected[0, :29]),
        (first[1], expected[1, :12]),
        (second[0], expected[0, 29:]),
        (second[1], expected[1, 12:13]),
    ):
        torch.testing.assert_close(out.double(), wanted, rtol=0, atol=1e-5)


def test_rounded_values_are_what_is_stored() -> None:
    """Writing rounds to the pool's dtype and touches only the given slots."""
    data, cache = Sequences(1, 5), make_cache(2, torch.bfloat16)
    view, _ = cache.view({"0": 5})
    view.update(1, data.k[0], data.v[0])
    keys = cache.pool.keys(1).flatten(0, 1)
    assert torch.equal(keys[view.layout.slots], data.k[0].bfloat16())
    untouched = torch.ones(len(keys), dtype=torch.bool)
    untouched[view.layout.slots] = False
    assert keys[untouched].isnan().all()
    assert cache.pool.keys(0).isnan().all()


def test_neighbours_change_rounding_only() -> None:
    """A decode beside much longer requests differs from the same decode alone by rounding."""
    data = Sequences(3, 200)
    alone, crowd = make_cache(8), make_cache(8)
    data.step(alone, {0: 3}, None)
    for i, start in enumerate((3, 199, 60)):
        data.step(crowd, {i: start}, None)
    single = data.step(alone, {0: 1}, None)[0]
    together = data.step(crowd, {0: 1, 1: 1, 2: 1}, None)[0]
    torch.testing.assert_close(together, single, rtol=0, atol=2e-6)
