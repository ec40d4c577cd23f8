"""The pool: its shape, its views, its bytes and the sizes it refuses."""

from __future__ import annotations

import pytest
import torch

from cache.pool import KVCachePool


def make_pool(*, num_blocks: int = 5, block_size: int = 4) -> KVCachePool:
    return KVCachePool(
        num_layers=3,
        num_blocks=num_blocks,
        block_size=block_size,
        num_kv_heads=2,
        head_dim=8,
        dtype=torch.bfloat16,
    )


def test_views_write_through_to_the_storage() -> None:
    """Keys and values of a layer are views: what is written there is in the storage, only there."""
    pool = make_pool()
    pool.keys(1)[2, 3] = 1.0
    pool.values(2)[4, 0] = 2.0
    expected = torch.zeros(2, 3, 5, 4, 2, 8, dtype=torch.bfloat16)
    expected[0, 1, 2, 3] = 1.0
    expected[1, 2, 4, 0] = 2.0
    assert torch.equal(pool.storage, expected)


def test_a_slot_is_block_times_block_size_plus_offset() -> None:
    """Flattening blocks and offsets of a view is free and yields the numbering of slots."""
    pool = make_pool()
    pool.keys(0).view(-1, 2, 8)[3 * 4 + 2] = 1.0
    assert pool.keys(0)[3, 2].eq(1.0).all()
    assert pool.keys(0).count_nonzero() == 16


def test_bytes_per_token_accounts_for_the_whole_storage() -> None:
    """The bytes of a token times the tokens of the pool are exactly what the pool takes."""
    pool = make_pool()
    per_token = KVCachePool.bytes_per_token(3, 2, 8, torch.bfloat16)
    assert per_token * 5 * 4 == pool.num_bytes == pool.storage.untyped_storage().nbytes()


def test_fresh_storage_is_finite() -> None:
    """A pool nobody has written holds zeros, so that masked rows cannot spread NaN."""
    assert make_pool().storage.count_nonzero() == 0


def test_layers_reach_huge_pages_one_after_the_other() -> None:
    """In a large pool each layer begins a new page of memory with another block than the rest."""
    pool = KVCachePool(
        num_layers=30,
        num_blocks=1025,
        block_size=16,
        num_kv_heads=4,
        head_dim=64,
        dtype=torch.bfloat16,
    )
    page, block_bytes = 2 * 2**20, pool.keys(0)[0].nbytes
    base = pool.storage.data_ptr()
    offsets = [layer.data_ptr() - base for layer in pool.storage.flatten(0, 1)]
    first_blocks = {-offset % page // block_bytes for offset in offsets}  # that lie in a new page
    assert len(first_blocks) == len(offsets) == 60
    assert pool.keys(3).is_contiguous()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_blocks": 1}, "num_blocks must be at least 2 .* is 1"),
        ({"block_size": 0}, "block_size must be a power of two, but is 0"),
        ({"block_size": 24}, "block_size must be a power of two, but is 24"),
    ],
)
def test_impossible_sizes_are_refused(sizes: dict[str, int], message: str) -> None:
    """A pool without room beside the padding block, or with an odd block size, is refused."""
    with pytest.raises(ValueError, match=message):
        make_pool(**sizes)
