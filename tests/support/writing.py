"""Answers of a fake engine, written by the writer of their endpoint."""

from __future__ import annotations

import asyncio
import json

from fakes import FakeEngine

from server.api.answers.chat_writer import ChatWriter
from server.api.answers.completion_writer import CompletionWriter
from server.api.answers.streaming import collect, events
from server.api.answers.writer import Writer
from server.api.inputs.input_processor import InputProcessor
from server.api.schemas.requests import ChatBody, CompletionBody, parse
from server.api.transport.wire import DONE
from server.api.transport.workers import Workers

MESSAGES = [{"role": "user", "content": "hi"}]


def writer(engine: FakeEngine, **body: object) -> Writer:
    """What writes the answer to this body: of a chat if it has messages."""
    inputs = InputProcessor(
        engine.info, engine.tokenizer, engine.chat_template, grammars=engine.grammars
    )
    if "messages" in body:
        call = inputs.chat(parse(ChatBody, body))
        inputs.constrain(call)
        return ChatWriter(call, engine.tokenizer)
    call = inputs.completion(parse(CompletionBody, body))
    inputs.constrain(call)
    return CompletionWriter(call, engine.tokenizer)


def stream(engine: FakeEngine, **body: object) -> list[bytes]:
    """The answer as a stream."""

    async def run() -> list[bytes]:
        one = writer(engine, **body)
        outputs = engine.generate(one.call.requests)
        return [part async for part in events(one, outputs, Workers(1).writing)]

    return asyncio.run(run())


def whole(engine: FakeEngine, **body: object) -> dict:
    """The answer in one."""

    async def run() -> bytes:
        one = writer(engine, **body)
        return await collect(one, engine.generate(one.call.requests), Workers(1).writing)

    return json.loads(asyncio.run(run()))


def chunks(parts: list[bytes]) -> list[dict]:
    """What the events of a whole stream say."""
    assert parts[-1] == DONE
    return [json.loads(part.removeprefix(b"data: ")) for part in parts[:-1]]
