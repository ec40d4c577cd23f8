"""Requests in the shapes that coding agents send, over several turns, with tools and reasoning.

Built from their public sources: Codex (codex-rs: ResponsesApiRequest, ToolSpec, ResponseItem),
Claude Code (the Messages API with betas) and Cline (the AI SDK's chat form).
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from fakes import FakeEngine
from serving import serving

from model.chat_template import ChatTemplate

QWEN3 = (
    "{%- if tools %}{{- '<|im_start|>system\\n' }}{%- if messages[0].role == 'system' %}"
    "{{- messages[0].content + '\\n\\n' }}{%- endif %}{{- '# Tools' }}"
    "{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}"
    "{{- '\\n<tool_call></tool_call><|im_end|>\\n' }}{%- elif messages[0].role == 'system' %}"
    "{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}"
    "{%- set last = namespace(query=0) %}{%- for m in messages %}{%- if m.role == 'user' %}"
    "{%- set last.query = loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- for m in messages %}{%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}"
    "{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{%- elif m.role == 'assistant' %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if m.reasoning_content and loop.index0 > last.query %}"
    "{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}{{- m.content }}"
    "{%- for call in m.tool_calls or [] %}{{- '\\n<tool_call>\\n' }}"
    "{{- {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}"
    "{{- '\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}"
    "{%- elif m.role == 'tool' %}"
    "{{- '<|im_start|>user\\n<tool_response>\\n' + m.content }}"
    "{{- '\\n</tool_response><|im_end|>\\n' }}"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""What Qwen3's template does with tools and thoughts, in fewer words."""
STRICT = (
    "{%- for m in messages %}{%- if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{%- endif %}{%- endfor %}"
    + QWEN3
)
REPLY = (
    "<think>\nI look.\n</think>\n\nLet me see.\n<tool_call>\n"
    '{"name": "%s", "arguments": {"path": "a.py"}}\n</tool_call>'
)
PARAMETERS = {
    "type": "object",
    "properties": {"path": {"type": "string"}},
    "required": ["path"],
    "additionalProperties": False,
}


class PlainTemplate(ChatTemplate):
    """A real template over a tokenizer that knows no control tokens."""

    def encode(self, tokenizer, messages, **options):
        segments = self.render(messages, **options)
        return tokenizer.encode("".join(segment.text for segment in segments))


def agent_engine(source: str, name: str) -> FakeEngine:
    return FakeEngine(REPLY % name, chat_template=PlainTemplate(source), max_model_len=20_000)


@pytest.fixture(params=[QWEN3, STRICT], ids=["qwen3", "strict"])
def source(request) -> str:
    return request.param


def events(answer: httpx.Response) -> Iterator[dict]:
    assert answer.status_code == 200, answer.text
    for line in answer.text.splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def prompt(engine: FakeEngine) -> str:
    return bytes(engine.requests[-1].token_ids).decode()


CODEX = {
    "model": "fake",
    "instructions": "You are a coding agent.",
    "tools": [
        {"type": "function", "name": "exec_command", "description": "Run.", "strict": False,
         "parameters": PARAMETERS},
        {"type": "custom", "name": "apply_patch", "description": "Edit.",
         "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}},
        {"type": "namespace", "name": "mcp__files__", "description": "Files.", "tools": [
            {"type": "function", "name": "read", "description": "Read.", "strict": False,
             "parameters": PARAMETERS}]},
        {"type": "web_search", "external_web_access": True},
        {"type": "local_shell"},
        {"type": "image_generation", "output_format": "png"},
        {"type": "tool_search", "execution": "client", "description": "x", "parameters": {}},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0195-thread",
    "text": {"verbosity": "low"},
    "client_metadata": {"x-codex-installation-id": "1"},
}  # fmt: skip


def codex_message(role: str, text: str) -> dict:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def test_codex(source):
    """Turns with a mixed list of tools, a call in a namespace, and all of its history again."""
    engine = agent_engine(source, "mcp__files__read")
    history = [
        codex_message("developer", "<permissions>"),
        codex_message("user", "<environment_context>"),
        codex_message("user", "Fix it."),
    ]
    with serving(engine) as url, httpx.Client(base_url=url, timeout=60) as client:
        for turn in range(3):
            answer = client.post("/v1/responses", json=CODEX | {"input": history})
            done = [e["item"] for e in events(answer) if e["type"] == "response.output_item.done"]
            ignored = answer.headers["x-ignored-fields"]
            for kind in ("custom", "web_search", "local_shell", "image_generation", "tool_search"):
                assert f"tools[].{kind}" in ignored
            assert [item["type"] for item in done] == ["reasoning", "message", "function_call"]
            call = done[-1]
            assert (call["namespace"], call["name"]) == ("mcp__files__", "read")
            assert json.loads(call["arguments"]) == {"path": "a.py"}
            output = {"type": "function_call_output", "call_id": call["call_id"], "output": "x = 1"}
            history += [*done, output]
            assert prompt(engine).count("<think>\nI look.\n</think>") == turn
            assert prompt(engine).count('{"name": "mcp__files__read", "arguments"') == turn
        custom = {"type": "custom_tool_call", "call_id": "p", "name": "apply_patch", "input": "*"}
        result = {"type": "custom_tool_call_output", "call_id": "p", "output": "Done"}
        search = {"type": "web_search_call", "id": "w", "status": "completed"}
        body = CODEX | {"input": [*history, custom, result, search], "stream": False}
        answer = client.post("/v1/responses", json=body)
        assert answer.status_code == 200, answer.text
        assert "input[].web_search_call" in answer.headers["x-ignored-fields"]
        assert '{"name": "apply_patch", "arguments": {"input": "*"}}' in prompt(engine)
        probe = client.post("/v1/responses", json=CODEX | {"input": []})
        assert probe.status_code == 200
        assert client.post("/v1/responses", json={"input": []}).status_code == 400
        named = {"tool_choice": {"type": "custom", "name": "apply_patch"}}
        refused = client.post("/v1/responses", json=CODEX | {"input": history} | named)
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "unsupported_value"
        assert "as a function" in refused.json()["error"]["message"]


CLAUDE_CODE = {
    "model": "fake",
    "max_tokens": 4000,
    "stream": True,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2"},
        {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
    ],
    "tools": [
        {"name": "Read", "description": "Read.", "input_schema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema", **PARAMETERS}},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    ],
    "metadata": {"user_id": "user_1"},
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "medium"},
}  # fmt: skip


def test_claude_code(source):
    """Turns with thoughts and results, a system turn in the middle and references to tools."""
    engine = agent_engine(source, "Read")
    history: list[dict] = [
        {"role": "user", "content": [{"type": "text", "text": "<system-reminder>"}]},
        {"role": "system", "content": "A hook says no."},
        {"role": "user", "content": "Fix it."},
    ]
    with serving(engine) as url, httpx.Client(base_url=url, timeout=60) as client:
        client.headers.update(
            {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-1"}
        )
        for turn in range(3):
            body = CLAUDE_CODE | {"messages": history}
            count = client.post("/v1/messages/count_tokens?beta=true", json=_counted(body))
            answer = client.post("/v1/messages?beta=true", json=body)
            blocks = _blocks(list(events(answer)))
            assert "tools[].web_search_20250305" in answer.headers["x-ignored-fields"]
            assert count.json()["input_tokens"] == len(engine.requests[-1].token_ids)
            assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use"]
            content = [
                {"type": "text", "text": "x = 1"},
                {"type": "tool_reference", "tool_name": "Write"},
            ]
            result = {"type": "tool_result", "tool_use_id": blocks[-1]["id"], "content": content}
            history += [
                {"role": "assistant", "content": blocks},
                {"role": "user", "content": [result]},
            ]
            assert prompt(engine).count("<think>\nI look.\n</think>") == turn
            assert prompt(engine).count("Write") == turn
            assert "A hook says no." in prompt(engine)
        named = {"tool_choice": {"type": "tool", "name": "web_search"}}
        refused = client.post("/v1/messages", json=CLAUDE_CODE | {"messages": history} | named)
        assert refused.status_code == 400
        assert "as a function" in refused.json()["error"]["message"]


def _counted(body: dict) -> dict:
    """What the client sends to have its tokens counted."""
    return {name: body[name] for name in ("model", "system", "tools", "messages", "thinking")}


def _blocks(stream: list[dict]) -> list[dict]:
    """The blocks of a message, as the client puts them together."""
    blocks: list[dict] = []
    for event in stream:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"] | {"partial": ""})
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            for name in ("text", "thinking"):
                if name in delta:
                    blocks[-1][name] += delta[name]
            blocks[-1]["partial"] += delta.get("partial_json", "")
    for block in blocks:
        partial = block.pop("partial")
        if block["type"] == "tool_use":
            block["input"] = json.loads(partial)
    return blocks


def test_a_system_turn_that_has_no_place_is_named():
    """A template that knows no system at all is quoted, with the turn that it refuses."""
    source = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}"
    engine = agent_engine(source + "{% endif %}{{ m.content }}{% endfor %}", "Read")
    history = [
        {"role": "user", "content": "a"},
        {"role": "system", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    with serving(engine) as url:
        answer = httpx.post(f"{url}/v1/messages", json={"messages": history, "max_tokens": 9})
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert "Role 'system' is not supported at 'messages[1]'" in message


def test_cline(source):
    """The AI SDK's chat form with its labels, thoughts and calls replayed."""
    engine = agent_engine(source, "read_file")
    function = {"name": "read_file", "description": "Read.", "parameters": PARAMETERS}
    body = {
        "model": "fake",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "tools": [{"type": "function", "function": {**function, "strict": True}}],
        "tool_choice": "auto",
        "promptCacheKey": "task-1",
        "reasoningSummary": "auto",
        "cache_control": {"type": "ephemeral"},
    }
    history: list[dict] = [
        {"role": "system", "content": "You are Cline."},
        {"role": "user", "content": [{"type": "text", "text": "Fix it."}]},
    ]
    with serving(engine) as url, httpx.Client(base_url=url, timeout=60) as client:
        for turn in range(3):
            answer = client.post("/v1/chat/completions", json=body | {"messages": history})
            deltas = [choice["delta"] for event in events(answer) for choice in event["choices"]]
            calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
            arguments = "".join(call["function"]["arguments"] for call in calls)
            made = {"name": "read_file", "arguments": arguments}
            history += [
                {
                    "role": "assistant",
                    "content": "".join(delta.get("content") or "" for delta in deltas),
                    "reasoning_content": "".join(d.get("reasoning_content", "") for d in deltas),
                    "tool_calls": [{"id": calls[0]["id"], "type": "function", "function": made}],
                },
                {"role": "tool", "tool_call_id": calls[0]["id"], "content": "x = 1"},
            ]
            assert json.loads(arguments) == {"path": "a.py"}
            assert prompt(engine).count("<think>\nI look.\n</think>") == turn
            assert "promptCacheKey" in answer.headers["x-ignored-fields"]
