"""What clients that cannot be run here send by default, as their sources have it, is accepted."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from engines import load_engine
from serving import serving

from server.engine.async_engine import AsyncEngine

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
TOOL = {
    "type": "function",
    "function": {"name": "read", "parameters": {"type": "object", "properties": {}}},
}
STRICT_TOOL = {"type": "function", "function": TOOL["function"] | {"strict": True}}
BODIES: dict[str, tuple[str, dict]] = {
    "Zed": (CHAT, USAGE | {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]},
                     {"role": "assistant", "content": []}, *HI],
        "temperature": 1.0, "max_completion_tokens": 4, "stop": [], "prompt_cache_key": "thread",
        "parallel_tool_calls": False, "tools": [TOOL]}),
    "Continue": (CHAT, USAGE | {
        "messages": HI, "max_tokens": 4, "stop": ["a", "b", "c", "d", "e", "f"],
        "tools": [TOOL], "parallel_tool_calls": False}),
    "Cline": (CHAT, USAGE | {
        "messages": HI, "max_tokens": 4, "temperature": 0, "cache_control": {"type": "ephemeral"}}),
    "Roo Code": (CHAT, USAGE | {
        "messages": [{"role": "developer", "content": "be kind"},
                     {"role": "user", "content": [{"type": "text", "text": "hi",
                                                   "cache_control": {"type": "ephemeral"}}]}],
        "temperature": 0, "max_completion_tokens": 4, "tools": [STRICT_TOOL],
        "tool_choice": "auto", "parallel_tool_calls": False}),
    "LibreChat": (CHAT, USAGE | {
        "messages": HI, "user": "65f0c0ffee", "max_tokens": 4, "frequency_penalty": 0,
        "presence_penalty": 0, "verbosity": "low"}),
    "Dify, to validate": (CHAT, {
        "messages": [{"role": "user", "content": "ping"}], "max_tokens": 5}),
    "Dify": (CHAT, USAGE | {
        "messages": HI, "user": "abc-123", "max_tokens": 4, "tool_choice": "auto",
        "tools": [TOOL], "chat_template_kwargs": {"enable_thinking": False, "thinking": False}}),
    "Open WebUI": (CHAT, USAGE | {
        "messages": HI, "max_tokens": 4, "top_k": 40, "min_p": 0.05, "seed": 1, "stop": ["x"],
        "logit_bias": {}, "keep_alive": "5m", "num_ctx": 512, "num_keep": 24, "mirostat": 0,
        "repeat_penalty": 1, "tools": []}),
    "Open WebUI, to go on": (CHAT, {
        "messages": [*HI, {"role": "assistant", "content": "We"}], "max_tokens": 4,
        "continue_final_message": True, "add_generation_prompt": False}),
    "SillyTavern chat": (CHAT, {
        "messages": HI, "max_tokens": 4, "presence_penalty": 0, "frequency_penalty": 0,
        "top_p": 1, "temperature": 1, "logit_bias": {}, "logprobs": True, "top_logprobs": 10,
        "seed": 5, "n": 1, "stream": True}),
    "SillyTavern text": (COMPLETIONS, {
        "prompt": "hi", "max_tokens": 4, "n": 1, "best_of": 1, "ignore_eos": False,
        "min_tokens": 0, "top_k": -1, "min_p": 0, "top_p": 1, "repetition_penalty": 1,
        "skip_special_tokens": True, "spaces_between_special_tokens": True, "seed": 5,
        "stream": True}),
    "guidellm": (COMPLETIONS, {
        "prompt": "hi", "max_tokens": 4, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
    "vllm bench": (COMPLETIONS, USAGE | {
        "prompt": "hi", "temperature": 0.0, "repetition_penalty": 1.0, "max_tokens": 4,
        "logprobs": None, "ignore_eos": True}),
    "vllm bench chat": (CHAT, USAGE | {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "temperature": 0.0, "max_completion_tokens": 4}),
    "aiperf": (CHAT, {
        "messages": HI, "max_completion_tokens": 4, "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
    "LangChain's older class": (COMPLETIONS, {
        "prompt": ["hi"], "frequency_penalty": 0, "presence_penalty": 0, "n": 1, "top_p": 1,
        "max_tokens": 4, "logprobs": None, "seed": None}),
    "pi": (CHAT, USAGE | {
        "messages": [*HI, {"role": "assistant", "content": [{"type": "text", "text": "a"}]}, *HI],
        "store": False, "max_completion_tokens": 4, "tools": []}),
    "OpenHands": (CHAT, {"messages": HI, "prompt_cache_key": "id", "max_completion_tokens": 4}),
    "AI SDK, completions": (COMPLETIONS, {"prompt": "hi", "stop": ["\nuser:"], "max_tokens": 4}),
    "lm-eval": (COMPLETIONS, {
        "prompt": [[72, 105], [72, 111]], "max_tokens": 1, "logprobs": 1, "echo": True,
        "seed": 1234}),
    "k6": (CHAT, {"messages": HI, "stream": False, "max_tokens": 4}),
}  # fmt: skip
HEADERS = {"authorization": "Bearer x", "api-key": "", "x-request-id": "1", "x-api-key": "y"}


@pytest.fixture(scope="module")
def client(checkpoint) -> Iterator[httpx.Client]:
    loaded = load_engine(checkpoint("rand-llama-tied"))
    with (
        serving(AsyncEngine(lambda: loaded)) as url,
        httpx.Client(base_url=url, timeout=60, headers=HEADERS) as client,
    ):
        yield client


@pytest.mark.parametrize("name", BODIES)
def test_default_bodies_are_accepted(client, name):
    """The body is answered whole, and a stream reports its usage where that was asked for."""
    path, body = BODIES[name]
    answer = client.post(path, json={"model": "rand-llama-tied"} | body)
    assert answer.status_code == 200, answer.text
    if body.get("stream"):
        assert answer.text.endswith("data: [DONE]\n\n")
        assert ('"choices":[]' in answer.text) == ("stream_options" in body)
    else:
        assert answer.json()["usage"]["completion_tokens"] >= 1


def test_what_clients_ask_first(client):
    """The models, health and tokens are where tools look for them before they begin."""
    (card,) = client.get("/v1/models").json()["data"]
    assert {"id", "object", "created", "owned_by", "root"} <= card.keys()
    for path in ("/health", "/metrics", "/tokenizer_info", "/version"):
        assert client.get(path).status_code == 200
    tokens = client.post("/tokenize", json={"prompt": "hi", "add_special_tokens": False}).json()
    assert tokens["tokens"] == [104, 105]
