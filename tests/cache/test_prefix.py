"""The prefix index: digests that depend on everything before a block, and finding them."""

from __future__ import annotations

import random

import pytest

from cache.prefix import PrefixIndex


def insert_all(index: PrefixIndex, token_ids: list[int], *, salt: str = "", first: int = 1) -> None:
    """Index the full blocks of a text as the blocks first, first + 1, ..."""
    digest = index.root(salt)
    for i in range(len(token_ids) // 2):
        digest = index.chain(digest, token_ids[2 * i : 2 * i + 2])
        index.insert(digest, first + i)


def test_match_equals_a_search_over_whole_texts() -> None:
    """On random texts of a tiny vocabulary the match is what comparing all texts would find."""
    generator = random.Random(0)
    index = PrefixIndex(block_size=2)
    known: dict[tuple[str, tuple[int, ...]], int] = {}
    for first in range(1, 200, 10):
        text = [generator.randrange(2) for _ in range(generator.randrange(12))]
        salt = generator.choice(["", "a"])
        insert_all(index, text, salt=salt, first=first)
        for i in range(len(text) // 2):
            known.setdefault((salt, tuple(text[: 2 * i + 2])), first + i)
    assert len(index) == len(known)
    for _ in range(300):
        text = [generator.randrange(2) for _ in range(generator.randrange(12))]
        salt = generator.choice(["", "a", "b"])
        expected = []
        while (key := (salt, tuple(text[: 2 * len(expected) + 2]))) in known:
            if len(key[1]) <= 2 * len(expected):  # the text has ended
                break
            expected.append(known[key])
        assert index.match(text, salt=salt).block_ids == expected


def test_a_block_is_found_only_behind_the_same_beginning() -> None:
    """Equal tokens behind different ones have different keys and values, so they do not match."""
    index = PrefixIndex(block_size=2)
    insert_all(index, [1, 2, 3, 4])
    assert index.match([1, 2, 3, 4], salt="").block_ids == [1, 2]
    assert index.match([9, 9, 3, 4], salt="").block_ids == []
    assert index.match([3, 4], salt="").block_ids == []


def test_a_part_of_a_block_is_never_found() -> None:
    """Tokens beyond the last full block are not looked up."""
    index = PrefixIndex(block_size=2)
    insert_all(index, [1, 2, 3, 4])
    assert index.match([1, 2, 3], salt="").block_ids == [1]
    assert index.match([1], salt="").block_ids == []
    assert index.match([], salt="").block_ids == []


def test_the_match_hands_over_the_digest_to_go_on_from() -> None:
    """Continuing the chain from a match yields the same digests as starting from the root."""
    index = PrefixIndex(block_size=2)
    insert_all(index, [1, 2])
    matched = index.match([1, 2, 3, 4], salt="")
    whole = index.chain(index.chain(index.root(""), [1, 2]), [3, 4])
    assert index.chain(matched.digest, [3, 4]) == whole


def test_salts_and_token_boundaries_separate_digests() -> None:
    """Salts, block contents and their order all change the digest; large ids do not overflow."""
    index = PrefixIndex(block_size=2)
    roots = [index.root(salt) for salt in ("", "a", "b", "\ud800", "0:")]
    digests = [index.chain(root, pair) for root in roots for pair in ([1, 2], [2, 1], [258, 0])]
    assert len({*roots, *digests}) == len(roots) + len(digests)


def test_no_salt_can_spell_out_a_block() -> None:
    """A root hashes apart from blocks, even if the salt were the very bytes a block hashes."""
    index = PrefixIndex(block_size=2)
    parent = b"0:" + b"x" * 30  # as the input of a root begins
    assert index.root("x" * 30 + "\0" * 16) != index.chain(parent, [0, 0])


def test_the_first_of_two_equal_blocks_stays_known() -> None:
    """A second block with known content is not indexed, and forgetting the first forgets it."""
    index = PrefixIndex(block_size=2)
    insert_all(index, [1, 2], first=5)
    insert_all(index, [1, 2], first=6)
    assert (list(index), 6 in index) == ([5], False)
    index.forget(5)
    assert index.match([1, 2], salt="").block_ids == []
    index.check_integrity()


def test_clearing_also_cuts_off_chains_in_progress() -> None:
    """What a running request inserts after a reset is not found by later requests."""
    index = PrefixIndex(block_size=2)
    old = index.chain(index.root(""), [1, 2])
    index.insert(old, 1)
    index.clear()
    index.insert(index.chain(old, [3, 4]), 2)
    insert_all(index, [1, 2], first=3)
    assert index.match([1, 2, 3, 4], salt="").block_ids == [3]


def test_a_partial_block_has_no_digest() -> None:
    """Hashing anything but a full block is a fault of ours."""
    with pytest.raises(AssertionError, match="full blocks"):
        PrefixIndex(block_size=2).chain(b"", [1])
