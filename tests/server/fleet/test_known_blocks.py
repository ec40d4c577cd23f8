"""server.fleet.known_blocks: homes of blocks, bounded in load, blocks and replicas."""

from __future__ import annotations

from collections import Counter

from server.fleet.known_blocks import MAX_HOMES, KnownBlocks

LOADS = {"a": 0, "b": 0, "c": 0}


def test_the_deepest_known_block_decides():
    """A prompt goes where most of it is known, not where only its beginning is."""
    known: KnownBlocks[str] = KnownBlocks()
    known.remember(("1",), "a")
    known.remember(("1", "2"), "b")
    assert known.rank(("1", "2", "3"), LOADS)[0] == ["b"]
    assert set(known.rank(("1", "9"), LOADS)[0]) == {"a", "b"}


def test_all_replicas_are_offered():
    """Whoever is no home follows, so that a full home holds nobody up."""
    known: KnownBlocks[str] = KnownBlocks()
    known.remember(("1",), "a")
    homes, others = known.rank(("1",), LOADS)
    assert homes == ["a"]
    assert set(others) == {"b", "c"}


def test_an_overloaded_home_is_none():
    """Beyond the bound a home is like any other replica."""
    known: KnownBlocks[str] = KnownBlocks(load_factor=1.25, slack=4)
    known.remember(("1",), "a")
    assert known.rank(("1",), {"a": 7, "b": 0, "c": 0})[0] == []
    assert known.rank(("1",), {"a": 6, "b": 0, "c": 0})[0] == ["a"]


def test_equals_are_taken_in_turn():
    """Prompts that nobody knows do not all go to the first of equal replicas."""
    known: KnownBlocks[str] = KnownBlocks()
    firsts = Counter(known.rank((str(i),), LOADS)[1][0] for i in range(300))
    assert set(firsts) == set(LOADS)
    assert min(firsts.values()) > 50


def test_a_lost_replica_is_never_offered():
    """Homes that are gone are ignored; their blocks find another."""
    known: KnownBlocks[str] = KnownBlocks()
    known.remember(("1",), "gone")
    homes, others = known.rank(("1",), LOADS)
    assert homes == []
    assert set(others) == set(LOADS)
    assert known.rank(("1",), {}) == ([], [])


def test_memory_is_bounded():
    """The least recently used block is forgotten first, and of homes the oldest."""
    known: KnownBlocks[int] = KnownBlocks(max_blocks=3)
    for number in range(10):
        known.remember(("0", str(number)), number)
    assert len(known) == 3
    assert len(known.rank(("0",), dict.fromkeys(range(10), 0))[0]) == MAX_HOMES
    assert known.rank(("2",), dict.fromkeys(range(10), 0))[0] == []
