"""The manager: regions, sharing, refusal, release, and 100,000 random steps against a model."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace

import pytest

from cache.manager import KVCacheManager, Region
from cache.window import AttentionWindow

BLOCK_SIZE = 4


def make_manager(num_blocks: int = 9, *, prefix_caching: bool = True) -> KVCacheManager:
    """A manager with `num_blocks - 1` blocks of 4 tokens."""
    return KVCacheManager(
        num_blocks=num_blocks, block_size=BLOCK_SIZE, prefix_caching=prefix_caching
    )


def allocate(manager: KVCacheManager, token_ids: list[int], **options: object) -> Region:
    region = manager.allocate(token_ids, **options)  # type: ignore[arg-type]  # passed through
    assert region is not None
    return region


def write(manager: KVCacheManager, token_ids: list[int], *, salt: str = "") -> Region:
    """A region whose tokens are all computed."""
    region = allocate(manager, token_ids, salt=salt)
    manager.commit(region, token_ids, len(token_ids))
    return region


def test_a_region_has_room_for_its_tokens() -> None:
    """Blocks are counted up to the next whole one, and growing within them takes none."""
    manager = make_manager()
    region = allocate(manager, list(range(5)))
    assert (len(region.block_ids), region.capacity, region.num_cached_tokens) == (2, 8, 0)
    assert manager.extend(region, 8)
    assert len(region.block_ids) == 2
    assert manager.extend(region, 9)
    assert len(region.block_ids) == 3
    assert manager.usage == 3 / 8


def test_room_for_more_or_fewer_tokens_can_be_asked_for() -> None:
    """The number of tokens to make room for need not be that of the known ones."""
    manager = make_manager()
    assert allocate(manager, [1, 2], num_tokens=9).capacity == 12
    assert allocate(manager, list(range(9)), num_tokens=3).capacity == 4


def test_equal_beginnings_share_blocks() -> None:
    """A second region starts with the first one's full blocks and continues in its own."""
    manager = make_manager()
    first = write(manager, [*range(8), 50, 51])
    second = allocate(manager, [*range(8), 60, 61])
    assert second.num_cached_tokens == 8
    assert second.block_ids[:2] == first.block_ids[:2]
    assert second.block_ids[2] != first.block_ids[2]
    manager.check_integrity()


def test_only_what_is_written_is_shared() -> None:
    """A block is found once all its tokens are computed, not when it is allocated."""
    manager = make_manager()
    tokens = list(range(10))
    region = allocate(manager, tokens)
    found = []
    for num_computed in (3, 4, 7, 9):
        manager.commit(region, tokens, num_computed)
        found.append(manager.num_matching_tokens(tokens))
    assert found == [0, 4, 4, 8]


def test_at_least_one_token_is_left_to_compute() -> None:
    """A text that is cached to the end of its last block gives up that block, shared or idle."""
    manager = make_manager()
    tokens = list(range(8))
    first = write(manager, tokens)
    second = allocate(manager, tokens)
    assert second.num_cached_tokens == 4
    assert second.block_ids[1] != first.block_ids[1]
    manager.release(first)
    assert allocate(manager, tokens).num_cached_tokens == 4
    assert allocate(manager, [*tokens, 8]).num_cached_tokens == 8
    manager.check_integrity()


def test_released_content_can_be_shared_until_it_is_evicted() -> None:
    """Blocks outlive their region, and of one region the last is evicted before the first."""
    manager = make_manager(num_blocks=5)
    manager.release(write(manager, list(range(8))))
    assert (manager.usage, manager.num_free_blocks) == (0, 4)
    taken = allocate(manager, [90] * 12)
    assert manager.num_matching_tokens(list(range(9))) == 4
    manager.release(taken)
    manager.check_integrity()


def test_a_refused_region_changes_nothing() -> None:
    """What does not fit gives None, even if only the blocks to be revived are too many."""
    manager = make_manager(num_blocks=5)
    manager.release(write(manager, list(range(8))))
    held = allocate(manager, [70] * 8)
    tokens = [*range(8), 1]  # two idle blocks to revive and one new, but two are available
    assert manager.allocate(tokens) is None
    assert (manager.num_free_blocks, manager.num_matching_tokens(tokens)) == (2, 8)
    assert not manager.extend(held, 20)
    assert len(held.block_ids) == 2
    assert allocate(manager, tokens[:8]).num_cached_tokens == 4
    manager.check_integrity()


def test_a_reserve_stays_available() -> None:
    """An allocation that would leave fewer blocks than asked for is refused."""
    manager = make_manager(num_blocks=5)
    assert manager.allocate([1] * 8, reserve=3) is None
    assert manager.allocate([1] * 8, reserve=2) is not None
    assert manager.can_allocate(8)
    assert not manager.can_allocate(9)


def test_sharing_cannot_evict_what_it_shares() -> None:
    """Making room for the rest of a text evicts other blocks, not the text's own beginning."""
    manager = make_manager(num_blocks=5)
    manager.release(write(manager, list(range(5))))  # the oldest idle block is the shared one
    manager.release(write(manager, [80] * 9))
    region = allocate(manager, [*range(4), *[7] * 12])
    assert region.num_cached_tokens == 4
    assert len(set(region.block_ids)) == 4
    manager.check_integrity()


def test_the_same_text_computed_twice_is_indexed_once() -> None:
    """Of two regions that compute equal blocks side by side, the first one's are kept."""
    manager = make_manager()
    tokens = list(range(4))
    first, second = allocate(manager, tokens), allocate(manager, tokens)
    manager.commit(first, tokens, 4)
    manager.commit(second, tokens, 4)
    manager.check_integrity()
    manager.release(second)  # its block goes straight back: nothing could find it
    manager.check_integrity()
    assert allocate(manager, [*tokens, 9]).block_ids[0] == first.block_ids[0]


def test_an_aborted_region_leaves_nothing_to_find() -> None:
    """A region released before anything was computed returns its blocks and keeps the shared."""
    manager = make_manager()
    manager.release(write(manager, list(range(4))))
    tokens = list(range(12))
    manager.release(allocate(manager, tokens))
    assert manager.num_matching_tokens(tokens) == 4
    assert manager.usage == 0
    manager.check_integrity()


def test_salts_do_not_share() -> None:
    """Regions with different salts find nothing of each other."""
    manager = make_manager()
    tokens = list(range(5))
    write(manager, tokens, salt="alice")
    assert allocate(manager, tokens, salt="bob").num_cached_tokens == 0
    assert allocate(manager, tokens).num_cached_tokens == 0
    assert allocate(manager, tokens, salt="alice").num_cached_tokens == 4


def test_sharing_can_be_declined_by_region_and_by_manager() -> None:
    """A region may ask to compute everything itself, and a manager may never share."""
    manager = make_manager()
    tokens = list(range(5))
    write(manager, tokens)
    assert allocate(manager, tokens, use_prefix=False).num_cached_tokens == 0
    without = make_manager(prefix_caching=False)
    without.release(write(without, tokens))
    assert allocate(without, tokens).num_cached_tokens == 0
    without.check_integrity()


def test_freeing_twice_is_impossible() -> None:
    """A released region is empty and is refused by every operation."""
    manager = make_manager()
    region = allocate(manager, [1])
    manager.release(region)
    assert region.block_ids == []
    with pytest.raises(ValueError, match="region is not in use"):
        manager.release(region)
    with pytest.raises(ValueError, match="region is not in use"):
        manager.extend(region, 1)
    with pytest.raises(ValueError, match="region is not in use"):
        manager.commit(region, [1], 1)
    manager.check_integrity()


def test_a_region_for_no_tokens_is_refused() -> None:
    """There is nothing to compute for an empty text."""
    with pytest.raises(ValueError, match="token_ids must hold at least 1 token"):
        make_manager().allocate([])


def test_committing_what_was_never_written_is_noticed() -> None:
    """Tokens beyond the region or beyond the known ones cannot have been computed."""
    manager = make_manager()
    region = allocate(manager, [1, 2])
    with pytest.raises(AssertionError, match="written where nothing was"):
        manager.commit(region, [1, 2], 3)
    with pytest.raises(AssertionError, match="written where nothing was"):
        manager.commit(region, [1, 2, 3, 4, 5], 5)


def test_reset_forgets_everything_but_disturbs_nobody() -> None:
    """After a reset nothing old is found, and running regions go on to their ends."""
    manager = make_manager()
    tokens = list(range(10))
    manager.release(write(manager, [99] * 5))
    running = allocate(manager, tokens)
    manager.commit(running, tokens, 4)
    manager.reset_prefix_cache()
    manager.check_integrity()
    manager.commit(running, tokens, 10)
    assert manager.num_matching_tokens(tokens) == 0
    assert manager.num_matching_tokens([99] * 5) == 0
    manager.release(running)
    manager.check_integrity()


@dataclass(eq=False)
class Sequence:
    """A request as the random test plays it."""

    token_ids: list[int]
    salt: str
    region: Region
    num_computed: int

    def entry(self, position: int) -> tuple[str, tuple[int, ...]]:
        """What the cache must hold at a position: a value that depends on all tokens so far."""
        return self.salt, tuple(self.token_ids[: position + 1])


class Model:
    """The naive truth beside the manager: what each slot contains and which texts are findable."""

    def __init__(self, generator: random.Random, num_blocks: int) -> None:
        self.generator = generator
        self.manager = make_manager(num_blocks)
        self.total = num_blocks - 1
        self.slots: dict[tuple[int, int], tuple[str, tuple[int, ...]]] = {}
        self.findable: dict[tuple[str, tuple[int, ...]], int] = {}
        self.live: list[Sequence] = []
        self.preempted: list[Sequence] = []
        self.seen: Counter[str] = Counter()

    def expected_match(self, token_ids: list[int], salt: str) -> list[int]:
        """The blocks of the longest findable beginning that leaves a token to compute."""
        found: list[int] = []
        for stop in range(BLOCK_SIZE, len(token_ids), BLOCK_SIZE):
            block_id = self.findable.get((salt, tuple(token_ids[:stop])))
            if block_id is None:
                break
            found.append(block_id)
        return found

    def took(self, block_ids: list[int]) -> None:
        """Blocks with a new owner: what they contained is lost."""
        lost = set(block_ids)
        findable = {text: b for text, b in self.findable.items() if b not in lost}
        self.seen["evicted"] += len(self.findable) - len(findable)
        self.findable = findable

    def start(self, token_ids: list[int], salt: str, *, use_prefix: bool = True) -> bool:
        """Allocate, and compare with what must be found and whether it must fit."""
        match = self.expected_match(token_ids, salt) if use_prefix else []
        held = {b for sequence in self.live for b in sequence.region.block_ids}
        num_new = -(-len(token_ids) // BLOCK_SIZE) - len(match)
        region = self.manager.allocate(token_ids, salt=salt, use_prefix=use_prefix)
        assert (region is not None) == (len(held | set(match)) + num_new <= self.total)
        self.seen["refused" if region is None else "shared" if match else "new"] += 1
        if region is None:
            return False
        assert region.block_ids[: len(match)] == match
        assert region.num_cached_tokens == len(match) * BLOCK_SIZE
        self.took(region.block_ids[len(match) :])
        self.live.append(Sequence(token_ids, salt, region, region.num_cached_tokens))
        return True

    def step_start(self) -> None:
        if self.preempted and self.generator.random() < 0.5:
            sequence = self.generator.choice(self.preempted)
            if self.start(sequence.token_ids, sequence.salt):
                self.preempted.remove(sequence)
                self.seen["resumed"] += 1
            return
        length = self.generator.randrange(1, 22)
        tokens = self.generator.choices([0, 1], weights=[5, 1], k=length)
        salt = self.generator.choice(["", "", "", "salt"])
        self.start(tokens, salt, use_prefix=self.generator.random() < 0.9)

    def step_compute(self) -> None:
        """Write some tokens where the region says, and commit them."""
        sequence = self.generator.choice(self.live)
        left = len(sequence.token_ids) - sequence.num_computed
        stop = sequence.num_computed + self.generator.randint(0, left)
        for position in range(sequence.num_computed, stop):
            block, offset = divmod(position, BLOCK_SIZE)
            self.slots[sequence.region.block_ids[block], offset] = sequence.entry(position)
        self.manager.commit(sequence.region, sequence.token_ids, stop)
        for i in range(sequence.num_computed // BLOCK_SIZE, stop // BLOCK_SIZE):
            text = sequence.entry((i + 1) * BLOCK_SIZE - 1)
            block_id = sequence.region.block_ids[i]
            self.seen["twin"] += self.findable.setdefault(text, block_id) != block_id
        sequence.num_computed = stop

    def step_extend(self) -> None:
        """Generate a few tokens, if they fit."""
        sequence = self.generator.choice(self.live)
        count = self.generator.randint(1, 3)
        before = list(sequence.region.block_ids)
        available = self.manager.num_free_blocks
        fits = self.manager.extend(sequence.region, len(sequence.token_ids) + count)
        after = sequence.region.block_ids
        needed = -(-(len(sequence.token_ids) + count) // BLOCK_SIZE)
        assert fits == (needed - len(before) <= available)
        assert after[: len(before)] == before
        assert len(after) == (max(needed, len(before)) if fits else len(before))
        if fits:
            self.took(after[len(before) :])
            sequence.token_ids += [self.generator.randrange(2) for _ in range(count)]

    def step_end(self) -> None:
        """Finish, abort or preempt: for the cache it is the same."""
        sequence = self.live.pop(self.generator.randrange(len(self.live)))
        self.manager.release(sequence.region)
        if self.generator.random() < 0.3 and len(sequence.token_ids) < self.total * BLOCK_SIZE:
            self.preempted.append(sequence)

    def step_reset(self) -> None:
        """End everything and forget everything; a reset beside running regions has its own test."""
        while self.live:
            self.step_end()
        self.manager.reset_prefix_cache()
        self.findable.clear()

    def step(self) -> None:
        draw = self.generator.random()
        if draw < 0.0005:
            self.step_reset()
        elif not self.live or draw < 0.25:
            self.step_start()
        elif draw < 0.6:
            self.step_compute()
        elif draw < 0.7:
            self.step_extend()
        else:
            self.step_end()

    def check(self) -> None:
        """Nobody's computed tokens were overwritten, and the books balance."""
        self.manager.check_integrity()
        held = {b for sequence in self.live for b in sequence.region.block_ids}
        assert self.manager.num_free_blocks == self.total - len(held)
        for sequence in self.live:
            block_ids = sequence.region.block_ids
            for position in range(sequence.num_computed):
                block, offset = divmod(position, BLOCK_SIZE)
                assert self.slots[block_ids[block], offset] == sequence.entry(position)


def play(num_steps: int, *, seed: int, num_blocks: int) -> Model:
    model = Model(random.Random(seed), num_blocks)
    for _ in range(num_steps):
        model.step()
        model.check()
    return model


@pytest.mark.parametrize("num_blocks", [3, 7, 12])
def test_random_steps_agree_with_a_naive_model(num_blocks: int) -> None:
    """Random steps find, fit and hold exactly what naive bookkeeping of whole texts says."""
    play(2_000, seed=num_blocks, num_blocks=num_blocks)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_hundred_thousand_random_steps_keep_every_invariant(seed: int) -> None:
    """100,000 allocations, extensions, shares, aborts, preemptions and evictions stay true."""
    seen = play(25_000, seed=100 + seed, num_blocks=9).seen
    assert min(seen[e] for e in ("new", "shared", "refused", "evicted", "resumed", "twin")) > 50


WINDOW = AttentionWindow(size=12, sinks=4, stride=4, moves_sinks=True)


def full_region(manager: KVCacheManager) -> Region:
    """A region that fills the window, all of it written."""
    return write(manager, list(range(WINDOW.capacity)))


def test_a_slide_drops_blocks_and_takes_as_many() -> None:
    """Sinks get blocks of their own, the oldest goes, and what went can be shared."""
    manager = make_manager(10)
    region = full_region(manager)
    sink, oldest, *rest = region.block_ids
    successor = manager.slide(region, WINDOW, num_dropped=4)
    assert successor is not None
    assert successor.block_ids[1:3] == rest
    assert len(successor.block_ids) == 4
    assert not {sink, oldest} & set(successor.block_ids)
    assert (successor.num_dropped_tokens, successor.num_stale_tokens) == (4, 4)
    assert manager.reusable_block_ids == (oldest, sink)
    assert region.block_ids == []
    manager.check_integrity()
    own_sink = successor.block_ids[0]
    again = manager.slide(successor, WINDOW, num_dropped=8)
    assert again is not None
    assert again.block_ids[0] == own_sink
    assert again.block_ids[1] == rest[1]
    manager.check_integrity()
    manager.release(again)
    assert manager.usage == 0


def test_sinks_that_do_not_move_keep_their_blocks() -> None:
    """Only the oldest behind them goes."""
    manager = make_manager(10)
    region = full_region(manager)
    sink, oldest, *rest = region.block_ids
    successor = manager.slide(region, replace(WINDOW, moves_sinks=False), num_dropped=4)
    assert successor is not None
    assert successor.block_ids[:3] == [sink, *rest]
    assert successor.num_stale_tokens == 0
    assert manager.reusable_block_ids == (oldest,)


def test_a_slide_for_want_of_blocks_changes_nothing() -> None:
    """Blocks that others share do not become free; the region is as it was."""
    manager = make_manager(5)
    region = full_region(manager)
    held = list(region.block_ids)
    other = allocate(manager, list(range(9)), num_tokens=8)
    assert other.block_ids[:2] == held[:2]
    assert manager.slide(region, WINDOW, num_dropped=4) is None
    assert region.block_ids == held
    manager.check_integrity()
    manager.release(other)
    assert manager.slide(region, WINDOW, num_dropped=4) is not None
    manager.check_integrity()
