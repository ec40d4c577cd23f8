"""Calls are found whatever the pieces, everything else stays text, and call ids are accepted."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_answers import read

from server.api.structured_output.tool_calls import (
    HERMES,
    LLAMA3_JSON,
    MISTRAL,
    PLAIN_JSON,
    TOOL_FORMATS,
    CallPiece,
    ToolCallParser,
    format_of_template,
)

NAMES = ("f", "g")
CASES = [
    (
        HERMES,
        (
            '<tool_call>\n{"name": "f", "arguments": {"a": "x}\\"{", "b": [1, {}]}}\n</tool_call>\n'
            '<tool_call>\n{"name":"g","arguments":{}}\n</tool_call>'
        ),
        "",
        [("f", '{"a": "x}\\"{", "b": [1, {}]}'), ("g", "{}")],
    ),
    (
        HERMES,
        (
            'Sure. <b>\n\n<tool_call>{"arguments": {"a" : 1 } , "name": "f"}</tool_call> done '
            "<tool_call>nope</tool_call> x"
        ),
        "Sure. <b> done <tool_call>nope</tool_call> x",
        [("f", '{"a" : 1 }')],
    ),
    (HERMES, '<tool_call>{"name": "unknown"}</tool_call>', None, []),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": "cut', "", [("f", '{"a": "cut')]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": 1}}  </tool', "", [("f", '{"a": 1}')]),
    (HERMES, "a < b <tool_ca  ", None, []),
    (HERMES, '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}', "", [("f", '{"a": 1}')]),
    (HERMES, '<tool_call>{"name": "f", "arguments": "words"}', None, []),
    (
        LLAMA3_JSON,
        '<|python_tag|>{"name": "f", "parameters": {"q": 1}}; {"name": "g", "parameters": {}}',
        "",
        [("f", '{"q": 1}'), ("g", "{}")],
    ),
    (LLAMA3_JSON, '{"name": "John", "age": 3}', None, []),
    (LLAMA3_JSON, 'Hello {"name": "f", "parameters": {}}', None, []),
    (LLAMA3_JSON, "<|pyth", None, []),
    (
        MISTRAL,
        'ok [TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
        "ok",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    (MISTRAL, "[TOOL_CALLS][1, 2]", None, []),
    (
        PLAIN_JSON,
        '[{"name": "f", "arguments": {"a": 1}},{"name": "g", "parameters": {"a": 2}}]',
        "",
        [("f", '{"a": 1}'), ("g", '{"a": 2}')],
    ),
    (PLAIN_JSON, ' {"name": "f", "arguments": null} more', "more", [("f", "{}")]),
    (PLAIN_JSON, '{"name": "f", "arguments": [1]}', None, []),
    (PLAIN_JSON, "[1, 2, 3] list", None, []),
    (PLAIN_JSON, '{"a": {"name": "f"}}', None, []),
    (PLAIN_JSON, "{hello}", None, []),
    (PLAIN_JSON, "  \n", None, []),
    (PLAIN_JSON, "", None, []),
]


@pytest.mark.parametrize(("tool_format", "answer", "text", "calls"), CASES)
def test_calls_are_found_and_text_is_kept(tool_format, answer, text, calls):
    """What is no call stays as it was."""
    assert read(tool_format, [answer]) == (answer if text is None else text, calls)


@pytest.mark.parametrize(("tool_format", "answer", "text", "calls"), CASES)
def test_every_character_alone_gives_the_same(tool_format, answer, text, calls):
    """Single characters are the smallest pieces there are."""
    assert read(tool_format, answer) == read(tool_format, [answer])


@given(case=st.sampled_from(CASES), cuts=st.lists(st.integers(0, 200)))
def test_pieces_do_not_matter(case, cuts):
    """However an answer is cut, the same comes out."""
    tool_format, answer, *_ = case
    edges = [0, *sorted(cut % (len(answer) + 1) for cut in cuts), len(answer)]
    pieces = [answer[start:stop] for start, stop in pairwise(edges)]
    assert read(tool_format, pieces) == read(tool_format, [answer])


MARKS = st.sampled_from(
    ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", '{"name": "f"',
     ', "arguments": ', '{"a": 1}', "}", "[", "]", ",", ";", " ", "\n", '"', "\\", ":", "x", "{"]
)  # fmt: skip


@settings(max_examples=300)
@given(
    tool_format=st.sampled_from(list(TOOL_FORMATS.values())),
    parts=st.lists(MARKS, max_size=12),
    size=st.integers(1, 5),
)
def test_whatever_a_model_writes_is_read_the_same_in_pieces(tool_format, parts, size):
    """Nonsense is text or calls, never a crash, and equal however it is cut."""
    answer = "".join(parts)
    pieces = [answer[start : start + size] for start in range(0, len(answer), size)]
    text, calls = read(tool_format, [answer])
    assert read(tool_format, pieces) == (text, calls)
    assert calls or text == answer


def test_text_is_held_back_only_while_it_may_become_a_call():
    """What cannot be a mark any more is said at once."""
    parser = ToolCallParser(HERMES, NAMES)
    assert parser.feed("Hello <tool") == ["Hello"]
    assert parser.feed("s>") == [" <tools>"]
    plain = ToolCallParser(PLAIN_JSON, NAMES)
    assert plain.feed("Hello {") == ["Hello {"]


def test_arguments_stream_as_they_come():
    """A call is announced as soon as it is certain, and its arguments do not wait for their end."""
    parser = ToolCallParser(HERMES, NAMES)
    assert parser.feed('<tool_call>{"name": "f", "arguments": ') == []
    first, second = parser.feed('{"a')
    assert (first.name, first.arguments) == ("f", "")
    assert second.arguments == '{"a'
    assert parser.feed('": "b') == [CallPiece(index=0, arguments='": "b')]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ '<tool_call>' }}", HERMES),
        ("{{ '[TOOL_CALLS] [' }}", MISTRAL),
        ("Environment: ipython", LLAMA3_JSON),
        ("{{ '<|python_tag|>' }}", LLAMA3_JSON),
        ("{{ messages }}", PLAIN_JSON),
    ],
)
def test_the_template_shows_the_format(template, expected):
    """A model writes calls as its template does."""
    assert format_of_template(template) is expected


def test_call_ids_are_what_templates_accept():
    """Mistral's template wants nine letters or digits."""
    assert len(MISTRAL.call_id()) == 9
    assert MISTRAL.call_id().isalnum()
    assert HERMES.call_id() != HERMES.call_id()
