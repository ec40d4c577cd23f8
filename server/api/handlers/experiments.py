"""Experiments: POST /v1/compare and POST /v1/attention, what the page lets people try.

Both are bounded, and comparisons run one at a time: doing without the cache is expensive, and
whoever is served beside one must not feel it.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from time import perf_counter
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from server import request as engine_request
from server.api.fields.fields import Endpoint
from server.api.handlers.admission import Admission, Ticket
from server.api.handlers.dispatcher import Asked, Dispatcher, json_answer
from server.api.protocols import EngineClient
from server.api.schemas import requests as schemas
from server.api.transport.connection import unless_gone
from server.api.transport.wire import encode, event
from server.api.transport.workers import Workers
from server.engine.comparison import Comparison, Run
from server.errors import (
    ContextLengthError,
    InternalError,
    InvalidRequestError,
    OverloadedError,
)

MAX_BODY_BYTES = 64_000
MAX_PROMPT_TOKENS = 256
"""Of a comparison's prompt, and of a text whose attention is shown."""
_RETRY_SECONDS = 5
_ROUNDED = 5
"""Digits of an attention weight."""
_DONE = b"data: [DONE]\n\n"

Experiment = TypeVar("Experiment", schemas.CompareBody, schemas.AttentionBody)
StepEvents = AsyncGenerator[dict[str, object], None]


class Experiments:
    """The handlers of these routes.

    Args:
        engine: Serves everybody else meanwhile.
        dispatcher: Reads, checks and sends.
        workers: Do what takes long.
    """

    def __init__(self, engine: EngineClient, dispatcher: Dispatcher, *, workers: Workers) -> None:
        self._engine = engine
        self._dispatcher = dispatcher
        self._workers = workers
        self._comparisons = Admission(1)
        self._recordings = Admission(1)

    async def compare(self, request: Request) -> Response:
        """Generate the same tokens with the cache and without it, and time each step."""
        asked = await self._read(request, schemas.CompareBody, Endpoint.COMPARE)
        body = asked.body
        token_ids = await self._encode(request, asked)
        limit = self._engine.info.max_model_len
        if len(token_ids) + body.max_tokens > limit:
            raise ContextLengthError(
                limit=limit, prompt=len(token_ids), completion=body.max_tokens, param="prompt"
            )
        with _begin(self._comparisons, "comparison").kept() as ticket:
            steps = self._compare(token_ids, body.max_tokens)
            if body.stream:
                events = _as_events(steps, ticket)
                return await self._dispatcher.stream(request, asked, events, ticket=ticket)
            answer = await unless_gone(request.receive, _last(steps))
            ticket.release()
            return json_answer(encode(answer), asked.ignored)

    async def attention(self, request: Request) -> Response:
        """Show what each token of a short text attends to."""
        asked = await self._read(request, schemas.AttentionBody, Endpoint.ATTENTION)
        body = asked.body
        token_ids = await self._encode(request, asked)
        info = self._engine.info
        _check_below("layer", body.layer, info.num_layers)
        _check_below("head", body.head, info.num_heads)
        ticket = _begin(self._recordings, "recording of attention")
        try:
            recording = self._engine.attention_weights(token_ids, layer=body.layer, head=body.head)
            weights = await unless_gone(request.receive, recording)
        finally:
            ticket.release()
        writing = self._workers.writing.run(lambda: encode(self._shown(body, token_ids, weights)))
        return json_answer(await unless_gone(request.receive, writing), asked.ignored)

    def _shown(
        self, body: schemas.AttentionBody, token_ids: list[int], weights: list[list[float]]
    ) -> dict[str, object]:
        """The answer about a text's attention, some hundred kilobytes: to be made in a thread."""
        info = self._engine.info
        return {
            "object": "attention",
            "model": info.model_name,
            "layer": body.layer,
            "head": body.head,
            "num_layers": info.num_layers,
            "num_heads": info.num_heads,
            "window": None if body.layer is None else info.cost.windows[body.layer],
            "token_ids": token_ids,
            "tokens": [self._engine.tokenizer.token_text(token) for token in token_ids],
            "weights": [
                [round(weight, _ROUNDED) for weight in row[: position + 1]]
                for position, row in enumerate(weights)
            ],
        }

    async def _read(
        self, request: Request, schema: type[Experiment], endpoint: Endpoint
    ) -> Asked[Experiment]:
        """Read and check a body, which is short."""
        asked = await self._dispatcher.read(request, schema, endpoint, max_bytes=MAX_BODY_BYTES)
        self._dispatcher.inputs.check_model(asked.body.model)
        return asked

    async def _encode(
        self, request: Request, asked: Asked[schemas.CompareBody] | Asked[schemas.AttentionBody]
    ) -> list[int]:
        prompt = asked.body.prompt
        token_ids = await self._dispatcher.prepare(
            request, asked, lambda: self._engine.tokenizer.encode(prompt)
        )
        if not 1 <= len(token_ids) <= MAX_PROMPT_TOKENS:
            raise InvalidRequestError(
                f"'prompt' must have 1 to {MAX_PROMPT_TOKENS} tokens here (got {len(token_ids)}).",
                param="prompt",
            )
        return token_ids

    async def _compare(self, token_ids: list[int], num_steps: int) -> StepEvents:
        """Yield each step of both runs, and in the end the comparison."""
        runs = []
        for use_cache in (True, False):
            run = Run(use_cache=use_cache)
            async with aclosing(self._run(run, token_ids, num_steps)) as steps:
                async for step in steps:
                    yield step
            runs.append(run)
        comparison = Comparison(cached=runs[0], uncached=runs[1], cost=self._engine.info.cost)
        yield {
            "object": "compare",
            "model": self._engine.info.model_name,
            **comparison.to_json(_marks(runs[0].lengths)),
        }

    async def _run(self, run: Run, token_ids: list[int], num_steps: int) -> StepEvents:
        """Generate one way, entering the steps in `run`."""
        request = engine_request.Request(
            request_id=f"compare-{uuid.uuid4().hex}",
            token_ids=list(token_ids),
            params=engine_request.SamplingParams(
                max_tokens=num_steps, temperature=0.0, ignore_eos=True
            ),
            use_cache=run.use_cache,
            prefix_cache=False,
        )
        begun = last = perf_counter()
        async with aclosing(self._engine.generate([request])) as outputs:
            async for output in outputs:
                if output.error is not None:
                    raise InternalError(output.error)
                now = perf_counter()
                for token_id in output.token_ids:
                    length = len(token_ids) + len(run.lengths)
                    run.add(length, now - last, token_id)
                    yield {
                        "object": "compare.step",
                        "use_cache": run.use_cache,
                        "length": length,
                        "step_ms": 1000 * (now - last),
                        "elapsed_ms": 1000 * (now - begun),
                        "token_id": token_id,
                        "text": output.text,
                    }
                last = now


def _begin(places: Admission, what: str) -> Ticket:
    """Take the one place there is for such a thing."""
    if places.num_open:
        raise OverloadedError(
            f"Another {what} is running, and they run one at a time. Try again later.",
            retry_after=_RETRY_SECONDS,
        )
    return places.enter(1)


def _marks(lengths: list[int]) -> list[int]:
    """Lengths to sum up at: the powers of two within the run, and its end."""
    first, last = lengths[0], lengths[-1]
    powers = (1 << exponent for exponent in range(last.bit_length()))
    return [*(power for power in powers if first < power < last), last]


async def _last(steps: StepEvents) -> dict[str, object]:
    """Let the steps run and return the last event."""
    answer: dict[str, object] = {}
    async with aclosing(steps):
        async for step in steps:
            answer = step
    return answer


async def _as_events(steps: StepEvents, ticket: Ticket) -> AsyncGenerator[bytes, None]:
    """The steps in the form of a stream; the place is free when its end can be seen."""
    async with aclosing(steps):
        async for step in steps:
            yield event(step)
    ticket.release()
    yield _DONE


def _check_below(name: str, value: int | None, limit: int) -> None:
    if value is not None and value >= limit:
        raise InvalidRequestError(
            f"'{name}' must be at most {limit - 1} with this model (got {value}).", param=name
        )
