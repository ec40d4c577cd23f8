"""Faults about the form of what is asked: odd places, depth, bounds, replayed thoughts."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from fakes import FakeChatTemplate, FakeEngine
from serving import serving

HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
NAMED = {"name": "n", "schema": SCHEMA}
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
BODIES = {
    COMPLETIONS: {"prompt": "A", "max_tokens": 1},
    CHAT: {"messages": HI, "max_tokens": 1},
    f"{CHAT}/input_tokens": {"messages": HI},
    RESPONSES: {"input": "x"},
    "/v1/messages": {"messages": HI, "max_tokens": 1},
    "/v1/compare": {"prompt": "A"},
    "/v1/attention": {"prompt": "A"},
    "/tokenize": {"messages": HI},
    "/detokenize": {"tokens": [65]},
}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine('{"a": 1}', chat_template=FakeChatTemplate("tools <tool_call>"))


@pytest.fixture
def client(engine) -> Iterator[httpx.Client]:
    with serving(engine) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


APPLIED = [
    {"type": "json_schema", "json_schema": NAMED},
    {"type": "json_schema", "schema": SCHEMA},
    {"type": "json_object", "schema": SCHEMA},
    {"type": "json_object", "json_schema": NAMED},
    {"type": "json_object", "schema": SCHEMA, "json_schema": None},
]
REFUSED = [
    {"type": "text", "schema": SCHEMA},
    {"type": "text", "json_schema": NAMED},
    {"type": "json_schema"},
    {"type": "json_schema", "schema": SCHEMA, "json_schema": NAMED},
    {"type": "json_object", "schemas": SCHEMA},
    {"type": "json_object", "strict": True},
    {"type": "json_schema", "json_schema": {**NAMED, "schemas": 1}},
    {"type": "json_object", "schema": "{}"},
]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_schema_in_any_place_is_applied_or_refused(client, engine, path):
    """Never 200 without it, whoever's form it has."""
    for form in APPLIED:
        answer = client.post(path, json=BODIES[path] | {"response_format": form})
        assert answer.status_code == 200, answer.text
        grammar = engine.requests[-1].grammar
        for byte in b'{"a":1}':
            grammar.accept(byte)
        assert grammar.is_finished
        assert "x-ignored-fields" not in answer.headers
    for form in REFUSED:
        answer = client.post(path, json=BODIES[path] | {"response_format": form})
        assert answer.status_code == 400, form
        assert answer.json()["error"]["param"] == "response_format"


def test_a_schema_in_any_place_of_a_response_is_applied_or_refused(client, engine):
    """The same of the flat form."""
    for form in (
        {"type": "json_schema", "name": "n", "schema": SCHEMA},
        {"type": "json_object", "schema": SCHEMA},
    ):
        answer = client.post(RESPONSES, json={"input": "x", "text": {"format": form}})
        assert answer.status_code == 200, answer.text
        assert engine.requests[-1].grammar is not None
    for form in (
        {"type": "text", "schema": SCHEMA},
        {"type": "json_object", "json_schema": NAMED},
        {"type": "json_schema", "json_schema": NAMED},
        {"type": "json_object", "format": "x"},
    ):
        answer = client.post(RESPONSES, json={"input": "x", "text": {"format": form}})
        assert answer.status_code == 400, form
        assert answer.json()["error"]["param"].startswith("text.format")
    output = {"format": {"type": "json_schema", "schema": SCHEMA, "strictly": True}}
    body = BODIES["/v1/messages"] | {"output_config": output}
    assert client.post("/v1/messages", json=body).status_code == 400


def test_a_schema_may_be_a_text(client, engine):
    """As some clients send `structured_outputs.json`."""
    for schema, status in ((json.dumps(SCHEMA), 200), ("{", 400), ("[]", 400), ("1", 400)):
        outputs = {"structured_outputs": {"json": schema}}
        answer = client.post(COMPLETIONS, json=BODIES[COMPLETIONS] | outputs)
        assert answer.status_code == status, answer.text
    assert engine.requests[-1].grammar is not None


SHORT = ("/v1/compare", "/v1/attention")
"""They read no body so long."""
FIELDS = ["chat_template_kwargs", "metadata", "tools", "response_format", "messages", "input",
          "prompt", "stop", "logit_bias", "user", "bogus", "tokens", "system"]  # fmt: skip


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("depth", [200, 900, 100_000])
def test_depth_is_refused_wherever_it_is(client, path, depth):
    """400, in a moment, of lists and of objects, in any field."""
    for field in FIELDS:
        for begin, end in (("[", "]"), ('{"a":', "}")):
            deep = begin * depth + "1" + end * depth
            body = {name: value for name, value in BODIES[path].items() if name != field}
            raw = json.dumps(body)[:-1] + f', "{field}": {deep}}}'
            answer = client.post(path, content=raw)
            allowed = (400, 413) if path in SHORT else (400,)
            assert answer.status_code in allowed, (field, answer.text[:200])


def test_a_bound_is_the_true_one(client):
    """With every digit, and the value beside it."""
    for name, value, bound in (
        ("seed", -(2**63) - 1, "at least -9223372036854775808"),
        ("seed", 2**63, "at most 9223372036854775807"),
        ("priority", 2**31, "at most 2147483647"),
        ("n", 129, "at most 128"),
        ("temperature", 2.5, "at most 2 "),
        ("repetition_penalty", 0, "at least 0.01"),
    ):
        answer = client.post(COMPLETIONS, json=BODIES[COMPLETIONS] | {name: value})
        message = answer.json()["error"]["message"]
        assert bound in message
        assert f"(got {value})" in message


class ThinkingTemplate(FakeChatTemplate):
    """Writes thoughts in front of what they led to."""

    shows_reasoning = True

    def encode(self, tokenizer, messages, **options):
        shown = [
            {**turn, "content": f"<{turn.get('reasoning_content', '')}>{turn['content']}"}
            if turn["role"] == "assistant"
            else turn
            for turn in messages
        ]
        return super().encode(tokenizer, shown, **options)


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
THINKS = {"role": "assistant", "content": "x", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "42"}
REPLAYS = {
    CHAT: {"messages": [*HI, {**THINKS, "reasoning_content": "hm"}, RESULT]},
    f"{CHAT}/input_tokens": {"messages": [*HI, {**THINKS, "reasoning": "hm"}, RESULT]},
    RESPONSES: {
        "input": [
            *HI,
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"role": "assistant", "content": "x"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "42"},
        ]
    },
    "/v1/messages": {
        "max_tokens": 9,
        "messages": [
            *HI,
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": ""},
                    {"type": "text", "text": "x"},
                    {"type": "tool_use", "id": "c", "name": "f", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "c", "content": "42"}],
            },
        ],
    },
}


@pytest.mark.parametrize("path", REPLAYS)
def test_replayed_thoughts_reach_a_template_that_shows_them(path):
    """They are counted and not reported there; elsewhere they are dropped and reported."""
    for template in (ThinkingTemplate(), FakeChatTemplate()):
        engine = FakeEngine(chat_template=template)
        with serving(engine) as url:
            answer = httpx.post(f"{url}{path}", json=REPLAYS[path], timeout=60)
        assert answer.status_code == 200, answer.text
        ignored = answer.headers.get("x-ignored-fields", "")
        thoughts = "<hm>" if template.shows_reasoning else ""
        told = 'x\n{"name": "f", "arguments": {}}'  # in words, as this template knows no calls
        expected = f"user:hi;assistant:{thoughts}{told};tool:42;assistant:"
        if path.endswith("input_tokens"):
            assert answer.json()["input_tokens"] == len(expected)
        else:
            assert bytes(engine.requests[-1].token_ids).decode() == expected
        is_reported = any(
            word in ignored for word in ("reasoning_content", "thinking", "input[].c")
        )
        assert is_reported is not template.shows_reasoning


TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
FLAT = {"name": "look", "input_schema": SCHEMA}
FORCED = '<tool_call>\n{"name": "look", "arguments": {"a": 1}}\n</tool_call>'


def test_a_forced_call_that_was_cut_is_no_text_and_not_whole():
    """In a chat the arguments so far and "length"; a message holds no call that looks whole."""
    engine = FakeEngine(FORCED, chat_template=FakeChatTemplate("tools <tool_call>"))
    with serving(engine) as url, httpx.Client(base_url=url, timeout=60) as client:
        for length in range(1, len(FORCED)):
            required = {"tools": [TOOL], "tool_choice": "required", "max_tokens": length}
            choice = client.post(CHAT, json={"messages": HI} | required).json()["choices"][0]
            assert choice["finish_reason"] == "length"
            assert choice["message"]["content"] is None
            (call,) = choice["message"]["tool_calls"]
            assert call["function"]["name"] == "look"
            assert '{"a": 1}'.startswith(call["function"]["arguments"])
            streamed = client.post(CHAT, json={"messages": HI, "stream": True} | required).text
            assert "tool_call>" not in streamed
            forced = {"tools": [FLAT], "tool_choice": {"type": "any"}, "max_tokens": length}
            answer = client.post("/v1/messages", json={"messages": HI} | forced).json()
            assert answer["stop_reason"] == "max_tokens"
            assert all(block.get("input") == {"a": 1} for block in answer["content"])


def test_small_differences_between_servers(client, engine):
    """What people send to others of its kind means the same here, or is answered with a hint."""
    begun = [*HI, {"role": "assistant", "content": "well"}]
    alone = client.post(CHAT, json={"messages": begun, "continue_final_message": True})
    assert alone.status_code == 200
    assert bytes(engine.requests[-1].token_ids).decode() == "user:hi;assistant:well"
    both = {"continue_final_message": True, "add_generation_prompt": True}
    assert client.post(CHAT, json={"messages": begun} | both).status_code == 400
    assert client.post("/tokenize", json={"messages": HI, "tools": [TOOL]}).status_code == 200
    bad = client.post("/tokenize", json={"messages": HI, "tools": [TOOL, TOOL]})
    assert bad.json()["error"]["param"] == "tools"
    hint = client.post(COMPLETIONS, json=BODIES[COMPLETIONS] | {"regex": "a+"})
    assert "'structured_outputs' with 'regex'" in hint.json()["error"]["message"]
    labels = {"promptCacheKey": "k", "reasoningSummary": "auto"}
    said = client.post(CHAT, json=BODIES[CHAT] | labels).headers["x-ignored-fields"]
    assert said == "promptCacheKey, reasoningSummary"


UNENFORCEABLE = {"type": "object", "properties": {"answers": {"not": {"type": "null"}}}}


@pytest.mark.parametrize(
    ("path", "tool", "choice", "place"),
    [
        (CHAT, lambda schema: {"type": "function", "function": {"name": "g", "parameters": schema}},
         "required", "tools[1].function.parameters.properties.answers"),
        (RESPONSES, lambda schema: {"type": "function", "name": "g", "parameters": schema},
         "required", "tools[1].parameters.properties.answers"),
        ("/v1/messages", lambda schema: {"name": "g", "input_schema": schema},
         {"type": "any"}, "tools[1].input_schema.properties.answers"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_enforced_is_named_with_its_tool(client, path, tool, choice, place):
    """In the client's own path, with the key; what says nothing is no fault."""
    for schema, status in ((UNENFORCEABLE, 400), ({**SCHEMA, "uniqueItems": False}, 200)):
        first = tool(SCHEMA)
        named = first.get("function", first)
        named["name"] = "f"
        body = BODIES[path] | {"tools": [first, tool(schema)], "tool_choice": choice}
        answer = client.post(path, json=body)
        assert answer.status_code == status, answer.text
        if status == 400:
            message = answer.json()["error"]["message"]
            assert f"'{place}'" in message
            assert "'not' is not supported" in message


def test_a_page_of_another_site_needs_a_preflight(client):
    """With an Origin a body must be JSON by its type; who is no browser may leave that out."""
    raw = json.dumps(BODIES[COMPLETIONS])
    site = {"Origin": "https://example.com"}
    for kind in ("text/plain", "application/x-www-form-urlencoded", "text/plain;application/json"):
        answer = client.post(COMPLETIONS, content=raw, headers=site | {"Content-Type": kind})
        assert answer.status_code == 415
        assert answer.json()["error"]["code"] == "unsupported_media_type"
        mine = client.post(COMPLETIONS, content=raw, headers={"Content-Type": kind})
        assert mine.status_code == 200
    assert client.post(COMPLETIONS, content=raw, headers=site).status_code == 415
    kind = {"Content-Type": "application/json; charset=utf-8"}
    assert client.post(COMPLETIONS, content=raw, headers=site | kind).status_code == 200
