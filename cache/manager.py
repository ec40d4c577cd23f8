"""KVCacheManager: gives each request its Region of the pool, shares what is shared, takes it back.

It deals in token ids, block ids and counts. It never touches a tensor and knows no requests: a
caller shows it token ids and says how many of them are written. The engine owns it; only the
scheduler calls it.

Two requests with the same beginning, block size 4; lower case is a token, [ ] a block:

    region A   [the cat sat on] [the mat .  It ] [was warm  .   .]    blocks 1 2 3
    region B   [the cat sat on] [the mat .  It ] [had a  ball    ]    blocks 1 2 4
                ^ indexed, held twice, never written again     ^ capacity 12, one token to spare

Full blocks are indexed once they are written (`commit`), and only full blocks are shared. A
request writes only behind what it shares, so a shared block cannot change under another reader.

    tokens of a request    0 ........ cached ......... computed ......... known ...... capacity
    whose keys and values  | others' work |    own work    | this step's  |   reserved  |
    where they lie         | shared blocks | own blocks, taken at admission or by extend |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cache.blocks import BlockAllocator
from cache.prefix import PrefixIndex
from cache.window import AttentionWindow


@dataclass(eq=False, kw_only=True, slots=True)
class Region:
    """One request's share of the pool; made by `allocate`, empty after `release`.

    Token i of the request lives in block `block_ids[i // block_size]` at offset i % block_size,
    where i counts the tokens that are here.
    """

    block_ids: list[int]
    """The blocks in the order of the tokens."""
    block_size: int
    num_cached_tokens: int
    """Tokens at the beginning that were found written: whole blocks, shared with others."""
    digest: bytes
    """The manager's: name of the last full block, from which the chain goes on."""
    num_committed_blocks: int
    """The manager's: full blocks that are named so far."""
    num_dropped_tokens: int = 0
    """Tokens between the first ones and the others that are here no longer; see window.py."""
    num_stale_tokens: int = 0
    """First tokens whose keys are to be computed anew, as they have moved."""

    @property
    def capacity(self) -> int:
        """Tokens that the region has room for."""
        return len(self.block_ids) * self.block_size


class KVCacheManager:
    """The books of the cache: who holds which block, and what can be shared.

    Args:
        num_blocks: Blocks of the pool, the padding block included.
        block_size: Tokens in a block.
        prefix_caching: Whether regions may share what earlier ones have written.
    """

    def __init__(self, *, num_blocks: int, block_size: int, prefix_caching: bool = True) -> None:
        self.num_blocks = num_blocks - 1
        """Blocks that regions can have: all but the padding block."""
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self._index = PrefixIndex(block_size)
        self._blocks = BlockAllocator(num_blocks, on_evict=self._index.forget)
        self._regions: set[Region] = set()

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds; some still contain what a later request may share."""
        return self._blocks.num_available

    @property
    def reusable_block_ids(self) -> tuple[int, ...]:
        """Blocks that nobody holds and that can still be shared, the next to be evicted first."""
        return self._blocks.reusable

    @property
    def usage(self) -> float:
        """The held part of the pool, from 0 to 1."""
        return 1 - self.num_free_blocks / self.num_blocks

    @property
    def max_tokens(self) -> int:
        """Tokens that a region could hold if it were alone."""
        return self.num_blocks * self.block_size

    def can_allocate(self, num_tokens: int) -> bool:
        """Whether a region for `num_tokens` fits now, even if it can share nothing."""
        return self._blocks_for(num_tokens) <= self.num_free_blocks

    def num_matching_tokens(self, token_ids: Sequence[int], *, salt: str = "") -> int:
        """How many tokens `allocate` would find cached at this moment."""
        return len(self._match(token_ids, salt=salt, use_prefix=True)[0]) * self.block_size

    def allocate(
        self,
        token_ids: Sequence[int],
        *,
        num_tokens: int | None = None,
        salt: str = "",
        use_prefix: bool = True,
        reserve: int = 0,
    ) -> Region | None:
        """Make a region that shares the cached beginning of `token_ids` and has room for the rest.

        At least one token is left to compute, because its logits are what the caller is after:
        a prompt that is cached to the end of its last block gives up that block.

        Args:
            token_ids: The tokens known so far, at least one.
            num_tokens: Tokens to make room for; all of `token_ids` if None.
            salt: Only regions of equal salts share.
            use_prefix: Whether to share at all; what is written here can be shared either way.
            reserve: Blocks that must remain available afterwards.

        Returns:
            The region, or None, and nothing changed, if it does not fit.
        """
        if not token_ids:
            raise ValueError("token_ids must hold at least 1 token, but is empty")
        cached, digest = self._match(token_ids, salt=salt, use_prefix=use_prefix)
        needed = self._blocks_for(len(token_ids) if num_tokens is None else num_tokens)
        num_new = max(needed - len(cached), 0)
        # Sharing a reusable block takes it from what is available, just as a new one does.
        num_revived = sum(map(self._blocks.is_reusable, cached))
        if num_new + num_revived + reserve > self._blocks.num_available:
            return None
        self._blocks.share(cached)  # first, so that making room for the rest cannot evict them
        new = self._blocks.take(num_new)
        assert new is not None, "counted above"
        region = Region(
            block_ids=cached + new,
            block_size=self.block_size,
            num_cached_tokens=len(cached) * self.block_size,
            digest=digest,
            num_committed_blocks=len(cached),
        )
        self._regions.add(region)
        return region

    def extend(self, region: Region, num_tokens: int) -> bool:
        """Make the region hold `num_tokens` in all; False, and nothing changed, if it cannot."""
        self._check_live(region)
        num_new = self._blocks_for(num_tokens) - len(region.block_ids)
        if num_new <= 0:
            return True
        new = self._blocks.take(num_new)
        if new is None:
            return False
        region.block_ids += new
        return True

    def commit(self, region: Region, token_ids: Sequence[int], num_computed: int) -> None:
        """Learn that the first `num_computed` of `token_ids` are written: index the full blocks."""
        self._check_live(region)
        assert num_computed <= min(len(token_ids), region.capacity), "written where nothing was"
        if not self.prefix_caching:
            return
        for i in range(region.num_committed_blocks, num_computed // self.block_size):
            content = token_ids[i * self.block_size : (i + 1) * self.block_size]
            region.digest = self._index.chain(region.digest, content)
            self._index.insert(region.digest, region.block_ids[i])
            region.num_committed_blocks = i + 1

    def slide(self, region: Region, window: AttentionWindow, *, num_dropped: int) -> Region | None:
        """Drop the oldest tokens behind the sinks, and make room for as many new ones.

        Nothing is committed after that: what follows depends on what is here no longer.

        Args:
            region: Full to its last block; it is empty afterwards.
            window: What is kept.
            num_dropped: Tokens dropped in all, more than so far.

        Returns:
            The region that takes its place, or None, and nothing changed, if blocks are wanting:
            those that others share do not become free.
        """
        self._check_live(region)
        assert region.capacity == window.capacity, "there is nothing to drop before it is full"
        count = (num_dropped - region.num_dropped_tokens) // self.block_size
        num_sinks = window.sinks // self.block_size
        sinks, rest = region.block_ids[:num_sinks], region.block_ids[num_sinks + count :]
        gone = region.block_ids[num_sinks : num_sinks + count]
        if window.moves_sinks and region.num_dropped_tokens == 0:  # the first may be shared
            gone, sinks = sinks + gone, []
        num_freed = sum(self._blocks.num_holders(block_id) == 1 for block_id in gone)
        if len(gone) > self._blocks.num_available + num_freed:
            return None
        self._release_blocks(gone)
        taken = self._blocks.take(len(gone))
        assert taken is not None, "counted above"
        sinks += taken[: num_sinks - len(sinks)]
        successor = replace(
            region,
            block_ids=sinks + rest + taken[-count:],
            num_dropped_tokens=num_dropped,
            num_stale_tokens=window.sinks if window.moves_sinks else 0,
        )
        self._regions.remove(region)
        self._regions.add(successor)
        region.block_ids = []
        return successor

    def release(self, region: Region) -> None:
        """Take back all blocks of a region, which is empty from then on.

        Raises:
            ValueError: The region was released before.
        """
        self._check_live(region)
        self._regions.remove(region)
        self._release_blocks(region.block_ids)
        region.block_ids = []

    def reset_prefix_cache(self) -> None:
        """Forget everything that could be shared; regions in use are not disturbed."""
        self._blocks.free_reusable()
        self._index.clear()

    @property
    def generation(self) -> int:
        """Names the beginning of all chains of digests; see PrefixIndex."""
        return self._index.generation

    def reusable_content(self, limit: int) -> list[tuple[bytes, int]]:
        """Digests and ids of the blocks that nobody holds and that can be shared.

        Args:
            limit: Of more, only the most recently used.

        Returns:
            In the order in which they would be evicted.
        """
        block_ids = self._blocks.reusable[-limit:] if limit else ()
        return [(self._index.digest_of(block_id), block_id) for block_id in block_ids]

    def adopt(self, digests: Sequence[bytes], *, generation: int) -> list[int]:
        """Make blocks with these digests findable, as if this manager had written them.

        The caller writes them before anybody is given a region; nothing may be in use or known.

        Args:
            digests: As `reusable_content` of another manager had them; no more than are free.
            generation: That manager's.

        Returns:
            The ids of the blocks, in order.
        """
        assert not self._regions, "an empty cache adopts, not one in use"
        self._index.continue_from(generation)
        block_ids = self._blocks.take(len(digests))
        assert block_ids is not None, "more blocks than are free"
        for digest, block_id in zip(digests, block_ids, strict=True):
            self._index.insert(digest, block_id)
            self._blocks.release(block_id, reusable=True)
        return block_ids

    def check_integrity(self) -> None:
        """Assert that free + held + reusable = total and that each count equals its holders.

        It takes time in proportion to the pool, so it is for tests and for a quiet moment.
        """
        holders = Counter(block_id for region in self._regions for block_id in region.block_ids)
        self._blocks.check_integrity(holders)
        self._index.check_integrity()
        unheld = [block_id for block_id in self._index if self._blocks.num_holders(block_id) == 0]
        assert all(map(self._blocks.is_reusable, unheld)), "a free block is still indexed"
        assert len(unheld) == self._blocks.num_reusable, "a reusable block is not indexed"

    def _release_blocks(self, block_ids: Sequence[int]) -> None:
        # Last block first: as the oldest it is evicted first, and a beginning outlives what
        # follows, which could not be found without it.
        for block_id in reversed(block_ids):
            self._blocks.release(block_id, reusable=block_id in self._index)

    def _match(
        self, token_ids: Sequence[int], *, salt: str, use_prefix: bool
    ) -> tuple[list[int], bytes]:
        # The last token is not looked up: it is the one that must be computed.
        searched = token_ids[:-1] if use_prefix and self.prefix_caching else ()
        return self._index.match(searched, salt=salt)

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _check_live(self, region: Region) -> None:
        if region not in self._regions:
            raise ValueError("region is not in use: it was released, or is another manager's")
