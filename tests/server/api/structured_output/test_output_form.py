"""What a request asks of its answer reaches the template, the model and the parser."""

from __future__ import annotations

import json

import pytest
from fakes import BOS, FakeChatTemplate, FakeEngine, FakeTokenizer
from grammars import allowed_ids, byte_compiler, random_text
from openai import OpenAI
from serving import serving

from server.api.schemas.requests import ChatBody, parse
from server.api.structured_output.output_form import NO_TOOLS, OutputForms
from server.engine.grammars.grammar import GrammarError
from server.errors import InvalidRequestError

USER = {"role": "user", "content": "hi"}
PARAMETERS = {
    "type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "x-mine": 1,
}  # fmt: skip
TOOL = {"type": "function", "function": {"name": "f", "parameters": PARAMETERS, "extra": None}}
OTHER = {"type": "function", "function": {"name": "g"}}
HERMES = "tools <tool_call>"
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": true}}\n</tool_call>'


@pytest.fixture(scope="module")
def compiler():
    return byte_compiler()


def forms(source: str = "", **options) -> OutputForms:
    return OutputForms(FakeTokenizer(), FakeChatTemplate(source), **options)


def body(**fields) -> ChatBody:
    return parse(ChatBody, {"messages": [USER], **fields})


def answers(compiler, source: str, prompt: str = "", **fields) -> set[str]:
    """Some answers that the request's grammar allows."""
    which = forms(source)
    asked = body(**fields)
    form = which.form(asked, which.tool_use(asked), prompt=list(prompt.encode()))
    assert form.constraint is not None
    grammar = compiler.compile(form.constraint.source)
    texts = {random_text(grammar.copy(), seed, steps=2000) for seed in range(12)}
    return {text for text in texts if text is not None}


def test_a_plain_request_asks_for_nothing():
    """No grammar, no parser, no control tokens in the text."""
    form = forms().form(body(response_format={"type": "text"}))
    assert form.constraint is None
    assert not form.answer_format.reasons
    assert form.answer_format.tool_format is None
    assert not form.shown_token_ids


def test_tools_reach_the_template_as_they_were_given():
    """Unknown keys and nulls included; with tool_choice none they stay away."""
    which = forms(HERMES)
    assert which.tool_use(body(tools=[TOOL])).definitions == (TOOL,)
    assert which.tool_use(body(tools=[TOOL], tool_choice="none")) == NO_TOOLS
    assert which.tool_use(body(tools=[])) == NO_TOOLS
    turns = [{"role": "user", "content": "hi"}]
    assert which.turns_with_tools(turns, which.tool_use(body(tools=[TOOL]))) == turns


def test_a_template_without_tools_gets_them_in_words():
    """The model is told in a system message, the user's own kept; past calls are spelt out."""
    which = forms()
    tools = which.tool_use(body(tools=[TOOL]))
    first, second = which.turns_with_tools([USER], tools)
    assert first["role"] == "system"
    assert json.dumps(TOOL["function"]) in first["content"]
    assert second == USER
    system = {"role": "system", "content": "Be brief."}
    told = which.turns_with_tools([system, USER], tools)
    assert [turn["role"] for turn in told] == ["system", "user"]
    assert told[0]["content"].startswith("Be brief.\n\n")
    past = {"role": "assistant", "content": "", "tool_calls": [
        {"function": {"name": "f", "arguments": '{"a": true}'}}]}  # fmt: skip
    assert which.turns_with_tools([past], NO_TOOLS) == [
        {"role": "assistant", "content": '{"name": "f", "arguments": {"a": true}}'}
    ]


def test_a_required_call_has_the_form_of_the_template(compiler):
    """One function, named: nothing but that call, in the model's own words."""
    named = {"type": "function", "function": {"name": "f"}}
    found = answers(compiler, HERMES, tools=[TOOL, OTHER], tool_choice=named)
    assert {text.replace('"a":t', '"a": t').replace('"a":f', '"a": f') for text in found} == {
        CALL,
        CALL.replace("true", "false"),
    }


def test_a_format_and_tools_that_may_be_called_leave_both_ways_open(compiler):
    """The answer is a call or fits the format; required calls leave no choice."""
    form = {"type": "json_schema", "json_schema": {"schema": {"type": "null"}}}
    found = answers(compiler, HERMES, tools=[OTHER], response_format=form)
    assert "null" in found
    assert any(text.startswith("<tool_call>") for text in found)
    required = answers(
        compiler, HERMES, tools=[OTHER], response_format=form, tool_choice="required"
    )
    assert all(text.startswith("<tool_call>") for text in required)


def test_thoughts_come_before_a_constrained_answer(compiler):
    """Where the prompt has opened the tag, the model may think first; the answer is bound."""
    outputs = {"choice": ["yes"]}
    which = forms("<think>")
    asked = body(structured_outputs=outputs)
    constraint = which.form(asked, prompt=list(b"assistant:<think>\n")).constraint
    grammar = compiler.compile(constraint.source)
    for byte in b"yes? no.</think>\n":
        grammar.accept(byte)
    assert allowed_ids(grammar) == [ord("\n"), ord("y")]
    for byte in b"yes":
        grammar.accept(byte)
    assert grammar.is_finished
    assert answers(compiler, "<think>", "assistant:", structured_outputs=outputs) == {"yes"}


class ThinkingTokenizer(FakeTokenizer):
    """Its control token 256 closes thoughts."""

    def token_to_id(self, token: str) -> int | None:
        return BOS if token == "</think>" else None


def test_marks_that_are_control_tokens_are_shown_and_used(compiler):
    """The parser must see them, and a grammar ends thoughts with the token, not its spelling."""
    which = OutputForms(ThinkingTokenizer(), FakeChatTemplate("<think>"))
    form = which.form(body(structured_outputs={"choice": ["yes"]}), prompt=list(b"<think>"))
    assert form.shown_token_ids == {BOS}
    grammar = compiler.compile(form.constraint.source)
    for byte in b"hm</think>":
        grammar.accept(byte)
    grammar.accept(BOS)
    assert allowed_ids(grammar) == [ord("\n"), ord("y")]


def test_two_constraints_exclude_each_other():
    """Both cannot be kept to."""
    asked = body(response_format={"type": "json_object"}, structured_outputs={"choice": ["a"]})
    with pytest.raises(InvalidRequestError, match="exclude"):
        forms().form(asked)


def test_a_server_without_a_parser_cannot_require_a_call():
    """And under auto the text stays text."""
    which = forms(HERMES, tool_call_parser="none")
    with pytest.raises(InvalidRequestError, match="--tool-call-parser"):
        which.tool_use(body(tools=[TOOL], tool_choice="required"))
    asked = body(tools=[TOOL])
    assert which.form(asked, which.tool_use(asked)).answer_format.tool_format is None


ANSWER = f"<think>\nhm</think>\n\nLet me see.\n{CALL}\n{CALL}"
SOURCES = {"said": ("<think> " + HERMES, ANSWER), "open": ("<think>", "hm</think>Yes")}


@pytest.mark.parametrize("source", SOURCES)
def test_parts_reach_the_client(source):
    """Thoughts, text and calls arrive apart, streamed and whole alike."""
    template, reply = SOURCES[source]
    messages = [USER] if source == "said" else [{"role": "user", "content": "x"}]
    engine = FakeEngine(reply, chat_template=FakeChatTemplate(template))
    options = {"model": "fake", "messages": messages, "tools": [TOOL]}
    if source == "open":
        options["messages"] = [USER, {"role": "assistant", "content": "<think>"}]
        options["extra_body"] = {"add_generation_prompt": False, "continue_final_message": True}
    with serving(engine) as url, OpenAI(base_url=f"{url}/v1", api_key="k") as client:
        whole = client.chat.completions.create(**options).choices[0]
        with client.chat.completions.stream(**options) as stream:
            chunks = [event.chunk for event in stream if event.type == "chunk"]
            final = stream.get_final_completion().choices[0]
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    thoughts = "".join(getattr(delta, "reasoning_content", "") for delta in deltas)
    assert thoughts == whole.message.reasoning_content == "hm"
    assert whole.message.content == final.message.content
    calls = [call.function.arguments for call in whole.message.tool_calls or ()]
    assert calls == [call.function.arguments for call in final.message.tool_calls or ()]
    assert whole.finish_reason == final.finish_reason
    if source == "said":
        assert whole.message.content == "Let me see."
        assert calls == ['{"a": true}'] * 2
        assert whole.finish_reason == "tool_calls"
    else:
        assert (whole.message.content, calls) == ("Yes", [])
        assert whole.finish_reason == "stop"


def test_a_call_that_is_cut_off_says_length():
    """What there is of the arguments is shown, and nothing claims to be complete."""
    engine = FakeEngine(CALL, chat_template=FakeChatTemplate(HERMES))
    with serving(engine) as url, OpenAI(base_url=f"{url}/v1", api_key="k") as client:
        choice = client.chat.completions.create(
            model="fake", messages=[USER], tools=[TOOL], max_tokens=46
        ).choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls[0].function.arguments == '{"a": t'


def test_a_strict_tool_constrains_calls_that_nobody_required(compiler):
    """Text stays free; other tools' arguments are any object; other formats cannot tell calls."""
    strict = {"type": "function", "function": TOOL["function"] | {"strict": True}}
    which = forms(HERMES)
    asked = body(tools=[strict, OTHER])
    grammar = compiler.compile(which.form(asked, which.tool_use(asked)).constraint.source)
    assert which.enforces_strict
    for text, fits in (
        ("Hello", True),
        (CALL, True),
        ('<tool_call>\n{"name": "g", "arguments": {"b": 1}}\n</tool_call>', True),
        ('<tool_call>\n{"name": "f", "arguments": {"b"', False),
        ('<tool_call>\n{"name": "h"', False),
    ):
        assert takes(grammar.copy(), text) is fits, text
    assert which.form(body(tools=[TOOL]), which.tool_use(body(tools=[TOOL]))).constraint is None
    plain = forms()
    assert not plain.enforces_strict
    assert plain.form(asked, plain.tool_use(asked)).constraint is None


def test_a_strict_tool_needs_a_schema_that_can_be_enforced(compiler):
    """What could not be held is not promised."""
    function = {"name": "f", "strict": True, "parameters": {"type": "objekt"}}
    asked = body(tools=[{"type": "function", "function": function}])
    which = forms(HERMES)
    constraint = which.form(asked, which.tool_use(asked)).constraint
    assert constraint.param == "tools"
    with pytest.raises(GrammarError):
        compiler.compile(constraint.source)


def takes(grammar, text: str) -> bool:
    """Whether a grammar goes through a text."""
    for byte in text.encode():
        if byte not in allowed_ids(grammar):
            return False
        grammar.accept(byte)
    return True
