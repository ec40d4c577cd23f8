"""kvserve generate: one text continued in the terminal, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Annotated

import typer

from server.api.inputs.input_processor import InputProcessor
from server.api.protocols import EngineClient
from server.api.schemas.requests import ChatBody, CompletionBody, parse
from server.commands.chat_options import (
    MaxTokens,
    MinP,
    Seed,
    Temperature,
    TopP,
    given,
    sampling_for,
)
from server.commands.engine_loading import loading
from server.commands.log_lines import log_to_stderr
from server.commands.options import with_options
from server.config import EngineConfig
from server.errors import KvserveError


@with_options(EngineConfig)
def generate(
    config: EngineConfig,
    prompt: Annotated[str, typer.Argument(help="The text to continue, or the question.")],
    *,
    chat: Annotated[
        bool, typer.Option("--chat", help="Ask through the model's chat template.")
    ] = False,
    max_tokens: MaxTokens = 128,
    temperature: Temperature = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
) -> None:
    """Continue a text in the terminal; no server needed."""
    log_to_stderr("warning")
    body = given(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, min_p=min_p, seed=seed
    )
    question: dict[str, object] = (
        {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
    )
    with loading(config) as engine:
        asyncio.run(_generate(engine, {**body, **question}))


async def _generate(engine: EngineClient, body: Mapping[str, object]) -> None:
    """Start the engine, run one request and print its text as it comes."""
    await engine.start()
    try:
        inputs = InputProcessor(
            engine.info, engine.tokenizer, engine.chat_template, grammars=engine.grammars
        )
        body = sampling_for(engine.info.default_params, body)
        if "messages" in body:
            call = inputs.chat(parse(ChatBody, body))
        else:
            call = inputs.completion(parse(CompletionBody, body))
        inputs.constrain(call)
        async with aclosing(engine.generate(call.requests)) as outputs:
            async for output in outputs:
                print(output.text, end="", flush=True)
                if output.error is not None:
                    raise KvserveError(output.error)
        print()
    finally:
        await engine.stop(1.0)
