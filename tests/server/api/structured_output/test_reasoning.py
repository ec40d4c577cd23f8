"""Thoughts are told apart from the answer, whatever the pieces."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.api.structured_output.reasoning import Reasoning, ReasoningParser

CASES = [
    ("<think>\nhi  there </th \n</think>\n\nanswer  ", False, "hi  there </th", "answer  "),
    ("hi\n</think>x", True, "hi", "x"),
    ("plain <think>", False, "", "plain <think>"),
    ("<think>unfinished  \n", False, "unfinished", ""),
    ("unfinished </think", True, "unfinished </think", ""),
    ("<thi", False, "", "<thi"),
    ("  \n", False, "", "  \n"),
    ("<think>\n\n</think>\n\nA", False, "", "A"),
    ("<think>a</think><think>b</think>", False, "a", "<think>b</think>"),
    ("", False, "", ""),
]


def read(pieces, is_open: bool) -> tuple[str, str]:
    parser = ReasoningParser(is_open=is_open)
    found = [part for piece in pieces for part in parser.feed(piece)] + parser.finish()
    thoughts = "".join(part.text for part in found if isinstance(part, Reasoning))
    return thoughts, "".join(part for part in found if isinstance(part, str))


@pytest.mark.parametrize(("answer", "is_open", "thoughts", "text"), CASES)
def test_thoughts_and_answer(answer, is_open, thoughts, text):
    """Only a first block counts, and white space around thoughts is dropped."""
    assert read([answer], is_open) == (thoughts, text)


@given(case=st.sampled_from(CASES), cuts=st.lists(st.integers(0, 60)))
def test_pieces_do_not_matter(case, cuts):
    """However an answer is cut, the same comes out."""
    answer, is_open, thoughts, text = case
    edges = [0, *sorted(cut % (len(answer) + 1) for cut in cuts), len(answer)]
    pieces = [answer[start:stop] for start, stop in pairwise(edges)]
    assert read(pieces, is_open) == (thoughts, text)


def test_thoughts_stream():
    """Nothing waits but what may be the closing tag."""
    parser = ReasoningParser(is_open=False)
    assert parser.feed("<think>a b") == [Reasoning("a b")]
    assert parser.feed(" </th") == []
    assert parser.feed("x") == [Reasoning(" </thx")]
