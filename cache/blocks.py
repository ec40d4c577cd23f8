"""BlockAllocator: which blocks of the pool are free, held or reusable, and by how many held.

It deals in block ids and counts. It never knows what a block contains: whether its content is
worth keeping is told by the manager, which owns the allocator.

The life of a block:

                     take                       release by the last holder
          +------+ -------> +------+  content indexed   +----------+
          | free |          | held | -----------------> | reusable |
          +------+ <------- +------+ <----------------- +----------+
                   content    | ^          share             |
                   unknown    +-+                            |
                             share                           |
                        (one more holder)     take, when no block is free: the oldest
                                              reusable block is evicted and held anew

Reusable blocks are a cache made of otherwise idle memory: their keys and values are intact and
come back to life when a prompt with the same beginning arrives. They count as available.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

PADDING_BLOCK = 0
"""Padding rows of a batch write here and unused table entries point here; nobody is given it."""


class BlockAllocator:
    """Free list, reference counts, and reusable blocks in the order of their last use.

    Every operation takes time in proportion to the blocks it touches.

    Args:
        num_blocks: Blocks of the pool, the padding block included.
        on_evict: Called with each block whose content is about to be lost.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None]) -> None:
        self._on_evict = on_evict
        self._num_holders = [0] * num_blocks
        # A stack that yields the lowest ids first and the block freed last before all others.
        self._free = list(range(num_blocks - 1, PADDING_BLOCK, -1))
        # Oldest first. A plain dict would scan past its deleted entries to find the oldest.
        self._reusable: OrderedDict[int, None] = OrderedDict()

    @property
    def num_available(self) -> int:
        """Blocks that `take` could hand out: the free and the reusable ones."""
        return len(self._free) + len(self._reusable)

    @property
    def num_reusable(self) -> int:
        """Blocks that nobody holds and whose content can still be shared."""
        return len(self._reusable)

    @property
    def reusable(self) -> tuple[int, ...]:
        """The ids of those blocks, in the order in which they would be evicted."""
        return tuple(self._reusable)

    def num_holders(self, block_id: int) -> int:
        """How many regions hold a block; 0 if it is free or reusable."""
        return self._num_holders[block_id]

    def take(self, count: int) -> list[int] | None:
        """Hand out `count` blocks, each with one holder, or None and nothing if there are fewer."""
        if count > self.num_available:
            return None
        taken = [self._free.pop() if self._free else self._evict_oldest() for _ in range(count)]
        for block_id in taken:
            self._num_holders[block_id] = 1
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        """Add a holder to blocks that are held or reusable."""
        for block_id in block_ids:
            if self._num_holders[block_id] == 0:
                del self._reusable[block_id]
            self._num_holders[block_id] += 1

    def release(self, block_id: int, *, reusable: bool) -> None:
        """Remove a holder; after the last one the block is `reusable` (as the youngest) or free."""
        assert self._num_holders[block_id] > 0, f"block {block_id} has no holder to remove"
        self._num_holders[block_id] -= 1
        if self._num_holders[block_id] > 0:
            return
        if reusable:
            self._reusable[block_id] = None
        else:
            self._free.append(block_id)

    def free_reusable(self) -> None:
        """Make every reusable block free, its content lost; `on_evict` is called for each."""
        while self._reusable:
            self._free.append(self._evict_oldest())

    def is_reusable(self, block_id: int) -> bool:
        """Whether nobody holds the block and its content can still be shared."""
        return block_id in self._reusable

    def check_integrity(self, holders: Mapping[int, int]) -> None:
        """Assert that every block is in exactly one state and has as many holders as it should.

        Args:
            holders: The true number of holders of each block that is held, counted by the owner.
        """
        free, reusable = set(self._free), set(self._reusable)
        held = {block_id for block_id, count in enumerate(self._num_holders) if count > 0}
        assert len(free) == len(self._free), "a block is in the free list twice"
        total = len(self._num_holders) - 1  # all but the padding block
        assert len(free) + len(held) + len(reusable) == total, (
            f"free {len(free)} + held {len(held)} + reusable {len(reusable)} != total {total}"
        )
        assert free | held | reusable == set(range(len(self._num_holders))) - {PADDING_BLOCK}
        counted = {block_id: self._num_holders[block_id] for block_id in held}
        assert counted == dict(holders), f"reference counts {counted} but holders {dict(holders)}"

    def _evict_oldest(self) -> int:
        block_id, _ = self._reusable.popitem(last=False)
        self._on_evict(block_id)
        return block_id
