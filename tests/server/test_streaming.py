"""server.streaming: chunks, events and whole answers made of the same pieces."""

from __future__ import annotations

import asyncio
import json

import pytest
from fakes import FakeEngine

from server import answers
from server.errors import InternalError
from server.input_processor import InputProcessor
from server.schemas import ChatBody, CompletionBody, parse
from server.streaming import (
    DONE,
    KEEP_ALIVE,
    ChatWriter,
    CompletionWriter,
    collect,
    encode,
    event,
    events,
)

MESSAGES = [{"role": "user", "content": "hi"}]


def writer(engine: FakeEngine, **body: object):
    inputs = InputProcessor(
        engine.info, engine.tokenizer, engine.chat_template, grammars=engine.grammars
    )
    if "messages" in body:
        return ChatWriter(inputs.chat(parse(ChatBody, body)), engine.tokenizer)
    return CompletionWriter(inputs.completion(parse(CompletionBody, body)), engine.tokenizer)


def stream(engine: FakeEngine, *, keep_alive: float = 9, **body: object) -> list[bytes]:
    async def run() -> list[bytes]:
        one = writer(engine, **body)
        outputs = engine.generate(one.call.requests)
        return [part async for part in events(one, outputs, keep_alive=keep_alive)]

    return asyncio.run(run())


def whole(engine: FakeEngine, **body: object) -> dict:
    async def run() -> bytes:
        one = writer(engine, **body)
        return await collect(one, engine.generate(one.call.requests))

    return json.loads(asyncio.run(run()))


def chunks(parts: list[bytes]) -> list[dict]:
    assert parts[-1] == DONE
    return [json.loads(part.removeprefix(b"data: ")) for part in parts[:-1]]


@pytest.mark.parametrize("body", [{"prompt": ["a", "b"]}, {"messages": MESSAGES}])
def test_a_finish_reason_stands_alone_and_last(body):
    """Each choice ends with a chunk that carries nothing else."""
    for n in (1, 3):
        ends = {}
        for chunk in chunks(stream(FakeEngine(), n=n, **body)):
            (choice,) = chunk["choices"]
            assert choice["index"] not in ends
            if choice["finish_reason"] is not None:
                ends[choice["index"]] = choice.get("text", choice.get("delta"))
        assert list(ends.values()) in ([""] * len(ends), [{}] * len(ends))
        assert len(ends) == n * len(body.get("prompt", [1]))


def test_usage_comes_last_and_only_if_asked_for():
    """One chunk without choices, directly before [DONE]."""
    with_usage = chunks(stream(FakeEngine(), prompt="a", stream_options={"include_usage": True}))
    assert [chunk["choices"] == [] for chunk in with_usage] == [False] * 13 + [True]
    assert with_usage[-1]["usage"]["completion_tokens"] == 13
    assert all("usage" not in chunk for chunk in chunks(stream(FakeEngine(), prompt="a")))


def test_token_ids_are_shown_when_asked_for():
    """Prompt ids once, generated ids with their chunks."""
    seen = chunks(stream(FakeEngine("ok"), prompt="a", return_token_ids=True))
    choices = [chunk["choices"][0] for chunk in seen]
    assert choices[0]["prompt_token_ids"] == [97]
    assert [id_ for choice in choices for id_ in choice["token_ids"]] == [*b"ok", 257]
    answer = whole(FakeEngine("ok"), messages=MESSAGES, return_token_ids=True)
    assert answer["choices"][0]["token_ids"] == [*b"ok", 257]
    assert answer["prompt_token_ids"][:4] == list(b"user")


def test_streamed_log_probabilities_join_to_the_whole():
    """Chunks carry the same entries as the whole answer, in order."""
    body = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2, "stop": ["wor"]}
    content = whole(FakeEngine("é, world"), **body)["choices"][0]["logprobs"]["content"]
    streamed = [
        entry
        for chunk in chunks(stream(FakeEngine("é, world"), **body))
        for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == content
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == "é, "


def test_legacy_alternatives_hold_the_chosen_token():
    """Even with none asked for, the chosen token is among the alternatives."""
    logprobs = whole(FakeEngine("ab"), prompt="x", logprobs=0)["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [{"a": -0.5}, {"b": -0.5}, {"<eos>": -0.5}]


def test_events_are_ascii():
    """Clients that split lines at every Unicode line end see one line."""
    part = event({"text": "\u2028🦉\x85"})
    assert part.isascii()
    assert part.count(b"\n") == 2
    assert json.loads(part[6:])["text"] == "\u2028🦉\x85"


def test_what_json_cannot_say_is_never_written():
    """A number that is none is a fault of ours, not a broken body."""
    with pytest.raises(ValueError, match="JSON"):
        encode({"x": float("nan")})


def test_silence_brings_comments_but_none_before_usage():
    """A comment for each interval without output; the end comes in one go."""
    engine = FakeEngine("ab")
    engine.step_seconds = 0.05
    parts = stream(engine, keep_alive=0.02, prompt="x", stream_options={"include_usage": True})
    assert KEEP_ALIVE in parts
    assert KEEP_ALIVE not in parts[-3:]


def test_a_failure_aborts_the_other_choices():
    """One failed choice fails the call, and nothing keeps running."""
    engine = FakeEngine()
    engine.fail_after = 2
    with pytest.raises(InternalError, match="injected failure"):
        whole(engine, prompt="a", n=3)
    assert not engine.open
    assert len(engine.aborted) == 2


def test_closing_a_stream_early_aborts_its_requests():
    """A client that leaves between two events ends the work."""
    engine = FakeEngine()
    engine.step_seconds = 0.01

    async def leave() -> None:
        one = writer(engine, prompt="a", n=2)
        parts = events(one, engine.generate(one.call.requests), keep_alive=9)
        await anext(parts)
        await parts.aclose()

    asyncio.run(leave())
    assert len(engine.aborted) == 2
    assert not engine.open


@pytest.mark.parametrize(
    ("body", "answer", "chunk"),
    [
        ({"prompt": "a", "logprobs": 1}, answers.Completion, answers.Completion),
        (
            {"messages": MESSAGES, "logprobs": True},
            answers.ChatCompletion,
            answers.ChatCompletionChunk,
        ),
    ],
)
def test_answers_are_of_their_documented_types(body, answer, chunk):
    """What is written parses as what the OpenAPI page describes."""
    assert answer.model_validate(whole(FakeEngine(), **body))
    for each in chunks(stream(FakeEngine(), **body)):
        assert chunk.model_validate(each)
