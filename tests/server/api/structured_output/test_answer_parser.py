"""Thoughts, text and calls of one answer come apart together."""

from hypothesis import given
from hypothesis import strategies as st

from server.api.answers.chat_parts import to_deltas, to_message
from server.api.structured_output.answer_parser import PLAIN_TEXT, AnswerFormat, AnswerParser
from server.api.structured_output.tool_calls import HERMES

BOTH = AnswerFormat(reasons=True, tool_format=HERMES, tool_names=frozenset({"f"}))
ANSWER = (
    "<think>\nuse <tool_call>?\n</think>\n\nWell.\n"
    '<tool_call>{"name": "f", "arguments": {"a": [1]}}</tool_call>\n'
    '<tool_call>{"name": "f"}</tool_call>'
)


def parts(answer_format: AnswerFormat, pieces):
    parser = AnswerParser(answer_format)
    return [part for piece in pieces for part in parser.feed(piece)] + parser.finish()


def test_plain_text_is_left_alone():
    """Without anything to look for, every piece passes as it is."""
    assert parts(PLAIN_TEXT, ["<think>", " ", "x"]) == ["<think>", " ", "x"]


def test_marks_inside_thoughts_are_thoughts():
    """A call is looked for only behind them."""
    message = to_message(parts(BOTH, [ANSWER]))
    assert message.reasoning_content == "use <tool_call>?"
    assert message.content == "Well."
    assert [call.function.arguments for call in message.tool_calls] == ['{"a": [1]}', "{}"]


@given(st.integers(1, 40))
def test_deltas_join_to_the_message(size):
    """Whatever the pieces, a client that adds the deltas up has the message."""
    pieces = [ANSWER[start : start + size] for start in range(0, len(ANSWER), size)]
    deltas = [
        delta
        for parser in [AnswerParser(BOTH)]
        for piece in [*pieces, None]
        for delta in to_deltas(parser.finish() if piece is None else parser.feed(piece))
    ]
    assert "".join(delta.content or "" for delta in deltas) == "Well."
    assert "".join(delta.reasoning_content for delta in deltas) == "use <tool_call>?"
    calls = [call for delta in deltas for call in delta.tool_calls]
    first = [call for call in calls if call.id]
    assert [
        (call.index, call.type, call.function.name, call.function.arguments) for call in first
    ] == [
        (0, "function", "f", ""),
        (1, "function", "f", ""),
    ]
    joined = ["".join(c.function.arguments for c in calls if c.index == i) for i in (0, 1)]
    assert joined == ['{"a": [1]}', "{}"]
