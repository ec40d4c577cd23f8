"""The allocator: states of a block, order of eviction, and what it refuses."""

from __future__ import annotations

from collections import Counter

import pytest

from cache.blocks import PADDING_BLOCK, BlockAllocator


def make_allocator(num_blocks: int = 6) -> tuple[BlockAllocator, list[int]]:
    """An allocator and the list of blocks it has evicted."""
    evicted: list[int] = []
    return BlockAllocator(num_blocks, on_evict=evicted.append), evicted


def release_all(blocks: BlockAllocator, block_ids: list[int], *, reusable: bool) -> None:
    for block_id in block_ids:
        blocks.release(block_id, reusable=reusable)


def test_every_block_but_padding_is_handed_out_once() -> None:
    """All blocks can be taken, each by one taker, and the padding block is never among them."""
    blocks, _ = make_allocator(6)
    taken = blocks.take(5)
    assert taken is not None
    assert sorted(taken) == [1, 2, 3, 4, 5]
    assert PADDING_BLOCK not in taken
    assert blocks.num_available == 0


def test_taking_too_many_takes_none() -> None:
    """A request for more blocks than are available changes nothing."""
    blocks, evicted = make_allocator(6)
    held = blocks.take(2)
    assert held is not None
    blocks.release(held[0], reusable=True)
    assert blocks.take(5) is None
    assert (blocks.num_available, blocks.num_reusable, evicted) == (4, 1, [])
    blocks.check_integrity({held[1]: 1})


def test_the_oldest_reusable_block_is_evicted_first() -> None:
    """Free blocks go before reusable ones, and those in the order of their release."""
    blocks, evicted = make_allocator(6)
    assert blocks.take(3) == [1, 2, 3]
    release_all(blocks, [2, 3, 1], reusable=True)
    assert blocks.take(2) == [4, 5]
    assert evicted == []
    assert blocks.take(2) == [2, 3]
    assert evicted == [2, 3]


def test_a_shared_block_survives_until_its_last_holder() -> None:
    """Each holder is counted; only after the last does the block become available."""
    blocks, _ = make_allocator()
    assert blocks.take(1) == [1]
    blocks.share([1])
    blocks.check_integrity({1: 2})
    blocks.release(1, reusable=False)
    assert (blocks.num_holders(1), blocks.num_available) == (1, 4)
    blocks.release(1, reusable=False)
    assert (blocks.num_holders(1), blocks.num_available) == (0, 5)


def test_sharing_a_reusable_block_revives_it_as_the_youngest() -> None:
    """A reusable block that found a holder is safe from eviction and ages anew afterwards."""
    blocks, evicted = make_allocator(4)
    assert blocks.take(3) == [1, 2, 3]
    release_all(blocks, [1, 2, 3], reusable=True)
    blocks.share([1])
    assert not blocks.is_reusable(1)
    blocks.release(1, reusable=True)
    blocks.take(3)
    assert evicted == [2, 3, 1]


def test_what_is_neither_held_nor_reusable_cannot_be_shared_or_released() -> None:
    """Sharing or releasing a free block is a fault of the caller and is noticed."""
    blocks, _ = make_allocator()
    with pytest.raises(KeyError):
        blocks.share([3])
    with pytest.raises(AssertionError, match="block 3 has no holder"):
        blocks.release(3, reusable=False)


def test_freeing_what_is_reusable_leaves_held_blocks_alone() -> None:
    """Dropping the cache frees and reports every reusable block, and no other."""
    blocks, evicted = make_allocator(5)
    assert blocks.take(3) == [1, 2, 3]
    release_all(blocks, [3, 1], reusable=True)
    blocks.free_reusable()
    assert (evicted, blocks.num_reusable, blocks.num_available) == ([3, 1], 0, 3)
    blocks.check_integrity({2: 1})


@pytest.mark.parametrize("holders", [{}, {1: 2}, {1: 1, 2: 1}])
def test_integrity_check_notices_wrong_counts(holders: dict[int, int]) -> None:
    """A reference count that differs from the number of holders fails the check."""
    blocks, _ = make_allocator()
    blocks.take(1)
    with pytest.raises(AssertionError):
        blocks.check_integrity(Counter(holders))


def test_integrity_check_notices_a_block_in_two_states() -> None:
    """A block that is free and held at once breaks the equation."""
    blocks, _ = make_allocator()
    blocks.take(1)
    blocks._free.append(1)
    with pytest.raises(AssertionError, match="!= total 5"):
        blocks.check_integrity({1: 1})
