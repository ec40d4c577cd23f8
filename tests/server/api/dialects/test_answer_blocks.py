"""api.dialects.answer_blocks: one answer as a row of blocks, however it is cut into pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.api.answers.choices import Piece
from server.api.dialects.answer_blocks import BlockKind, BlockReader, Step
from server.api.structured_output.answer_parser import AnswerFormat
from server.api.structured_output.tool_calls import HERMES
from server.request import FinishReason

FORMAT = AnswerFormat(reasons=True, tool_format=HERMES, tool_names=frozenset({"f"}))
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
ANSWER = f"<think>hm</think>One{CALL} two\n{CALL}\n{CALL} three"
BLOCKS = [
    (BlockKind.THOUGHTS, "hm"),
    (BlockKind.TEXT, "One"),
    (BlockKind.CALL, '{"a": 1}'),
    (BlockKind.TEXT, "two"),
    (BlockKind.CALL, '{"a": 1}'),
    (BlockKind.CALL, '{"a": 1}'),
    (BlockKind.TEXT, "three"),
]


def pieces(*texts: str, reason: FinishReason = FinishReason.STOP) -> list[Piece]:
    """One token for each text; the last has the reason."""
    last = len(texts) - 1
    return [
        Piece(text=text, token_ids=(i,), finish_reason=reason if i == last else None)
        for i, text in enumerate(texts)
    ]


def read(given_pieces: list[Piece], answer_format: AnswerFormat = FORMAT, *, is_cut: bool = False):
    """The reader and all changes."""
    reader = BlockReader(answer_format)
    changes = [
        change
        for piece in given_pieces
        for change in reader.read(piece, is_cut=is_cut and piece.finish_reason is not None)
    ]
    return reader, changes


@given(st.lists(st.integers(0, len(ANSWER)), max_size=12))
def test_blocks_open_grow_and_close_one_after_the_other(cuts):
    """Wherever the pieces end, the row is the same and what was gained is what is there."""
    ends = [0, *sorted(cuts), len(ANSWER)]
    texts = [ANSWER[a:b] for a, b in pairwise(ends)]
    reader, changes = read(pieces(*texts))
    found = [(block.kind, block.text.strip()) for block in reader.blocks]
    assert found == BLOCKS
    assert [block.index for block in reader.blocks] == list(range(len(BLOCKS)))
    assert reader.num_calls == 3
    assert all(block.is_complete for block in reader.blocks)
    for block in reader.blocks:
        steps = [change for change in changes if change.block is block]
        assert steps[0].step is Step.OPENS
        assert steps[-1].step is Step.CLOSES
        assert all(change.step is Step.GAINS for change in steps[1:-1])
        assert "".join(change.text for change in steps) == block.text
    assert [change.block.index for change in changes] == sorted(c.block.index for c in changes)


@pytest.mark.parametrize(
    ("texts", "complete"),
    [
        (("<think>h", "m"), [False]),
        (("<think>hm</think>", "One"), [True, False]),
        ((f"a{CALL[:40]}",), [True, False]),
        ((f"a{CALL}",), [True, True]),
        ((f"a{CALL} b",), [True, True, False]),
    ],
)
def test_what_was_cut_off_never_counts_as_complete(texts, complete):
    """The last block is not, unless it is a call whose arguments are."""
    reader, _ = read(pieces(*texts, reason=FinishReason.LENGTH), is_cut=True)
    assert [block.is_complete for block in reader.blocks] == complete


def test_a_call_that_the_model_left_open_is_not_complete():
    """Even if the model ended the answer by itself."""
    reader, _ = read(pieces(CALL[:40]))
    assert [block.is_complete for block in reader.blocks] == [False]


@pytest.mark.parametrize(
    ("texts", "count"),
    [
        (("One", " two"), 0),
        (("<think>", "h", "m", "</think>", "One"), 4),
        (("<th", "ink>", "h", " ", "</th", "ink>", "\n", "One", " two"), 7),
        (("<think>", "h", "</think>"), 3),
        (("<think>", "hm", " "), 3),
        (("<think>h</think>One", " two"), 1),
    ],
)
def test_tokens_of_thoughts_are_counted_with_their_marks(texts, count):
    """Those of the answer are not, nor white space between that is held back with it."""
    reader, _ = read(pieces(*texts))
    assert reader.num_reasoning_tokens == count


def test_an_answer_of_nothing_has_no_blocks():
    """Not even an empty one."""
    reader, changes = read(pieces(""))
    assert reader.blocks == changes == []
