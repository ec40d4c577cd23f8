"""Response formats and structured outputs as rules."""

import pytest
from grammars import byte_compiler, random_text

from server.api.schemas.requests import CompletionBody, parse
from server.api.structured_output.answer_rules import answer_rules
from server.engine.grammars.grammar import GrammarSource
from server.errors import InvalidRequestError


def rules(**fields):
    return answer_rules(parse(CompletionBody, {"prompt": "x", **fields}))


def test_nothing_asked_is_no_rule():
    """Text is the neutral format."""
    assert rules() is None
    assert rules(response_format={"type": "text"}) is None


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ({"regex": "a/b\\/c"}, {"a/b/c"}),
        ({"regex": "a\nb"}, {"a\nb"}),
        ({"choice": ['"\\', "é😀"]}, {'"\\', "é😀"}),
        ({"json": {"const": "/"}}, {'"/"'}),
    ],
)
def test_texts_are_what_was_asked_for(outputs, expected):
    """Whatever needs escaping comes out as it went in."""
    found = rules(structured_outputs=outputs)
    assert found.param == "structured_outputs"
    grammar = byte_compiler().compile(GrammarSource(f"start: answer\n{found.rules}"))
    assert {random_text(grammar.copy(), seed) for seed in range(8)} == expected


def test_an_empty_schema_is_any_json():
    """Not just objects."""
    assert '"object"' in rules(structured_outputs={"json_object": True}).rules
    assert '"object"' not in rules(structured_outputs={"json": {}}).rules


def test_exactly_one_constraint():
    """None, or two, is an error that names the field."""
    for outputs in ({}, {"json_object": False}, {"regex": "a", "choice": ["b"]}):
        with pytest.raises(InvalidRequestError, match="exactly one") as error:
            rules(structured_outputs=outputs)
        assert error.value.param == "structured_outputs"
