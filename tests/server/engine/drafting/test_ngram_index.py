"""NgramIndex: what followed when a text last ended as it does now."""

from __future__ import annotations

import random

import pytest

from server.engine.drafting.ngram_index import NgramIndex


def continuation(text: list[int], count: int) -> list[int]:
    index = NgramIndex()
    assert index.update(text, most=len(text))
    return index.continuation(text, count)


def brute_force(text: list[int], count: int) -> list[int]:
    """The definition, read off the text: the longest repetition, of equal ones the latest."""
    best, best_length = None, 1
    for place in range(len(text) - 2, 0, -1):
        length = 0
        while length <= place and text[place - length] == text[len(text) - 1 - length]:
            length += 1
        if min(length, 8) > best_length:
            best, best_length = place, min(length, 8)
    if best is None:
        return []
    longer = list(text)
    for i in range(count):
        longer.append(longer[best + 1 + i])
    return longer[len(text) :]


@pytest.mark.parametrize("text", [[], [1], [1, 2], [1, 2, 3], [1, 1], [5, 6, 7, 6]])
def test_a_text_that_repeats_no_pair_foretells_nothing(text: list[int]):
    """Without an earlier place that ends in the same two tokens there is no guess."""
    assert continuation(text, 4) == []


def test_the_longest_repetition_wins():
    """Of several earlier places the one that agrees furthest back is followed."""
    assert continuation([9, 1, 2, 30, 8, 1, 2, 40, 9, 1, 2], 1) == [30]
    assert continuation([9, 1, 2, 30, 9, 1, 2, 40, 9, 1, 2], 1) == [40]


def test_a_text_that_repeats_itself_goes_on_doing_so():
    """A guess may be longer than what stands behind the earlier place."""
    assert continuation([1, 2, 3, 1, 2, 3, 1, 2], 7) == [3, 1, 2, 3, 1, 2, 3]
    assert continuation([7, 7, 7], 4) == [7, 7, 7, 7]


def test_it_equals_its_definition():
    """On random texts of few words the index finds what a search of the whole text finds."""
    generator = random.Random(5)
    for _ in range(500):
        text = [generator.randrange(8) for _ in range(generator.randrange(1, 40))]
        assert continuation(text, 5) == brute_force(text, 5), text


def test_growing_a_token_at_a_time_changes_nothing():
    """An index that followed its text knows what one that read it at once knows."""
    generator = random.Random(6)
    text: list[int] = []
    index = NgramIndex()
    for _ in range(200):
        text.append(generator.randrange(6))
        assert index.update(text, most=1)
        assert index.continuation(text, 3) == continuation(text, 3)


def test_a_long_prompt_is_taken_in_over_several_steps():
    """No call takes in more than a bounded number of tokens."""
    text = [*range(21)]
    index = NgramIndex()
    assert [index.update(text, most=10) for _ in range(4)] == [False, False, True, True]
    assert len(index) == len(text)
