"""server.api.structured_output.call_grammar: whoever follows a grammar makes calls that fit.

Beside its calls a model says what it likes.
"""

from __future__ import annotations

import json

import jsonschema
import pytest
from fakes import BOS, EOS
from grammars import allowed_ids, byte_compiler, random_text
from tool_answers import read

from server.api.structured_output.call_grammar import (
    MAX_PARALLEL_CALLS,
    calls_grammar,
    text_or_calls_grammar,
)
from server.api.structured_output.schema_preparation import prepare_schema
from server.api.structured_output.tool_calls import HERMES, MISTRAL, TOOL_FORMATS, ToolFormat
from server.engine.grammars.grammar import Grammar, GrammarSource

TOOLS = {
    "f": {"type": "object", "properties": {"c": {"type": "string"}}, "required": ["c"]},
    "g": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"],
          "$defs": {"n": {"type": "integer"}}},
}  # fmt: skip


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("tool_format", TOOL_FORMATS.values(), ids=list(TOOL_FORMATS))
def test_constrained_calls_parse_and_fit_their_schemas(tool_format, parallel):
    """A model that follows the grammar has made calls, one or several, and said nothing else."""
    schemas = {name: prepare_schema(schema) for name, schema in TOOLS.items()}
    rules = calls_grammar(tool_format, schemas, parallel=parallel, mark_ids={})
    grammar = byte_compiler().compile(GrammarSource(f"start: calls\n{rules}"))
    counts = set()
    for seed in range(20):
        answer = random_text(grammar.copy(), seed, steps=4000)
        if answer is None:
            continue
        text, calls = read(tool_format, answer)
        assert text == ""
        counts.add(len(calls))
        for name, arguments in calls:
            jsonschema.validate(json.loads(arguments), TOOLS[name])
    assert min(counts) >= 1
    assert max(counts) <= MAX_PARALLEL_CALLS
    assert (counts == {1}) is not parallel


def free(tool_format: ToolFormat, **options: object) -> Grammar:
    """A grammar for free text and these calls."""
    schemas = {name: prepare_schema(schema) for name, schema in TOOLS.items()}
    defaults = {"parallel": True, "mark_ids": {}, "text_ids": ()}
    rules = text_or_calls_grammar(tool_format, schemas, **(defaults | options))
    return byte_compiler().compile(GrammarSource(f"start: answer\n{rules}"))


def after(grammar: Grammar, text: str | list[int]) -> list[int]:
    """What may follow a text that the grammar must take; nothing if it does not."""
    one = grammar.copy()
    for token_id in text.encode() if isinstance(text, str) else text:
        if token_id not in allowed_ids(one):
            return []
        one.accept(token_id)
    return allowed_ids(one)


CALL = '<tool_call>\n{"name": "f", "arguments": {"c": "x"}}\n</tool_call>'
MISTRAL_CALL = '[TOOL_CALLS] [{"name": "f", "arguments": {"c": "x"}}]'


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        (HERMES, ""),
        (HERMES, "plain <b> text, \u00e9\n{} and <tool_call without its end"),
        (HERMES, CALL),
        (HERMES, f"Let me see.\n{CALL}"),
        (HERMES, f"{CALL}\n{CALL} and so on"),
        (MISTRAL, "plain [TOOL_CALL] text"),
        (MISTRAL, MISTRAL_CALL),
        (MISTRAL, f"Let me see.{MISTRAL_CALL}"),
    ],
)
def test_text_is_free_until_a_call_begins(tool_format, text):
    """Every such answer may end where it ends."""
    assert EOS in after(free(tool_format), text)


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        (HERMES, "<tool_call>"),
        (HERMES, CALL[:-1]),
        (HERMES, '<tool_call>\n{"name": "h'),
        (HERMES, '<tool_call>\n{"name": "f", "arguments": {"n'),
        (HERMES, '<tool_call>\n{"name": "g", "arguments": {"n": "'),
        (HERMES, "so: <tool_call>nothing"),
        (MISTRAL, "[TOOL_CALLS]"),
        (MISTRAL, '[TOOL_CALLS] [{"name": "g", "arguments": {"n": "'),
    ],
)
def test_what_begins_as_a_call_must_become_one(tool_format, text):
    """It names a function, fits the schema and is complete before the answer ends."""
    assert EOS not in after(free(tool_format), text)


@pytest.mark.parametrize(
    ("tool_format", "lead"), [(HERMES, "Well. <tool_call>"), (MISTRAL, "Well. [TOOL_CALLS]")]
)
def test_a_call_that_was_begun_fits_its_schema(tool_format, lead):
    """Whatever a model draws then, and the text before it stays text."""
    grammar = free(tool_format, parallel=False)
    for byte in lead.encode():
        grammar.accept(byte)
    for seed in range(12):
        rest = random_text(grammar.copy(), seed, steps=2000)
        if rest is None:
            continue
        text, calls = read(tool_format, lead + rest)
        assert text.startswith("Well.")
        assert len(calls) == 1
        jsonschema.validate(json.loads(calls[0][1]), TOOLS[calls[0][0]])


def test_one_call_is_all_where_calls_may_not_stand_beside_each_other():
    """The second cannot begin."""
    assert EOS in after(free(HERMES, parallel=False), CALL)
    assert not after(free(HERMES, parallel=False), f"{CALL}\n<tool_call>")
    assert after(free(HERMES), f"{CALL}\n<tool_call>")


def test_marks_and_thoughts_may_be_control_tokens():
    """Then only the token begins a call, and its name is text as any other."""
    grammar = free(HERMES, mark_ids={"<tool_call>": BOS})
    assert EOS in after(grammar, "a <tool_call> b")
    assert after(grammar, [*b"a", BOS]) == [ord("\n")]
    assert BOS not in after(free(HERMES), "a")
    assert EOS in after(free(HERMES, text_ids=[BOS]), [BOS, *b"hm", BOS, *CALL.encode()])
