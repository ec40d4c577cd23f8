"""Parts in the wire's types."""

from server.api.answers.chat_parts import to_deltas, to_message
from server.api.structured_output.reasoning import Reasoning
from server.api.structured_output.tool_calls import CallPiece

FIRST = CallPiece(index=0, id="call_1", name="f")


def dump(model) -> dict:
    return model.model_dump(exclude_unset=True)


def test_a_message_of_text_has_nothing_else():
    """Empty lists and thoughts are left out; content is a string, be it empty."""
    assert dump(to_message(["a", "b"])) == {"role": "assistant", "content": "ab", "refusal": None}
    assert to_message([]).content == ""


def test_content_is_null_beside_calls_or_thoughts_alone():
    """Clients tell a call by it."""
    message = to_message([FIRST, CallPiece(index=0, arguments="{}")])
    assert message.content is None
    assert dump(message.tool_calls[0]) == {
        "id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"},
    }  # fmt: skip
    assert to_message([Reasoning("hm")]).content is None


def test_neighbours_of_a_kind_are_one_delta_and_the_first_of_a_call_stands_alone():
    """Id, type and name come once, with empty arguments."""
    more = [CallPiece(index=0, arguments=text) for text in ("{", "}")]
    deltas = [
        dump(delta) for delta in to_deltas([Reasoning("a"), Reasoning("b"), "c", "d", FIRST, *more])
    ]
    assert deltas == [
        {"reasoning_content": "ab"},
        {"content": "cd"},
        {"tool_calls": [{"index": 0, "id": "call_1", "type": "function",
                         "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
    ]  # fmt: skip
