"""Front: the HTTP side of a fleet, an ASGI application that keeps no state but open exchanges.

It reads a request, guesses which replica knows its beginning, forwards it, and passes the answer
on. If the replica is lost it has another one go on. Any number of fronts may stand side by side.
The body's meaning, the fields and the model are the replicas' business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.api.handlers.access import REQUEST_ID, error_response
from server.api.transport.connection import read_body, unless_gone
from server.api.transport.exchange import CURRENT, Exchange, request_id
from server.api.transport.wire import encode
from server.errors import ApiError, EngineUnavailableError, InternalError, RequestTimeoutError
from server.fleet.fleet_config import FleetConfig
from server.fleet.fleet_metrics import merge_metrics
from server.fleet.journal import (
    CONTENT,
    ForwardedRequest,
    Journal,
    NotContinuableError,
    ReplicaLostError,
    Step,
)
from server.fleet.prompt_blocks import prompt_blocks
from server.fleet.relayed_answer import RelayedAnswer

logger = logging.getLogger(__name__)
MAX_ATTEMPTS = 8
"""Replicas that may be lost under one request before it is to blame itself."""
_PAUSE_SECONDS = 0.1
"""Before another attempt; doubled each time."""
_READY = "ready"
_STRIPPED = frozenset(
    {b"x-request-timeout-seconds", b"x-request-disconnect-disabled", b"serve_multiplexed_model_id"}
)
"""Headers by which a client could switch off what protects the others."""


class Replicas(Protocol):
    """The replicas of a fleet, wherever they are."""

    def answer(
        self, request: ForwardedRequest, *, journal: Journal, blocks: Sequence[str]
    ) -> AsyncGenerator[Sequence[Step], None]:
        """Have one of them answer, behind what the journal says; see Replica.answer."""

    async def statuses(self) -> list[str]:
        """What those that can be asked can do now."""

    async def metrics(self) -> list[tuple[str, str]]:
        """Their names, and their metrics as text."""


class Front:
    """Answers for all replicas.

    Args:
        replicas: Who computes.
        config: The limits.
    """

    def __init__(self, replicas: Replicas, config: FleetConfig) -> None:
        self._replicas = replicas
        self._config = config
        self._open: set[asyncio.Timeout] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.is_draining = False
        """Whether new requests are refused."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            try:
                await self._answer(scope, receive, send)
            except ClientDisconnect:
                logger.debug("a client left")

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, wait for those that run, and end the rest with an error.

        Args:
            seconds: How long they are waited for.
        """
        self.is_draining = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)
        now = asyncio.get_running_loop().time()
        for limit in self._open:
            limit.reschedule(now)
        await self._idle.wait()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["path"] in ("/health", "/ready"):
                response = await self._state()
            elif scope["path"] == "/metrics":
                response = await self._metrics()
            else:
                await self._forward(scope, receive, send)
                return
        except ApiError as error:
            response = error_response(error, scope["path"])
        await response(scope, receive, send)

    async def _state(self) -> Response:
        """Whether any replica lives, or takes requests."""
        statuses = await self._replicas.statuses()
        num_ready = statuses.count(_READY)
        if self.is_draining:
            raise EngineUnavailableError("The fleet is draining.", code="draining")
        if num_ready == 0:
            raise EngineUnavailableError(
                f"None of {len(statuses)} replicas is ready.", code="loading"
            )
        status = {"status": _READY, "replicas": len(statuses), "ready_replicas": num_ready}
        return Response(encode(status), media_type="application/json")

    async def _metrics(self) -> Response:
        text = merge_metrics(await self._replicas.metrics())
        return Response(text, media_type="text/plain; version=0.0.4")

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the request and have it answered, for as long as its client is there."""
        if self.is_draining:
            raise EngineUnavailableError("The fleet is draining.", code="draining")
        body = await read_body(Request(scope, receive), self._config.max_body_bytes)
        exchange = CURRENT.get() or Exchange(request_id(None))
        forwarded = ForwardedRequest(
            scope=_content(scope, exchange),
            body=body,
            secret=exchange.chance.secret,
            began=exchange.chance.began,
        )
        answer = RelayedAnswer(send, scope["path"])
        exchange.facts["replicas"] = answer.replicas
        try:
            async with asyncio.timeout(self._config.drain) as limit:
                self._enter(limit)
                await unless_gone(receive, self._relay(forwarded, answer))
        except TimeoutError:
            await answer.fail(self._why_ended())
        finally:
            self._leave(limit)

    def _enter(self, limit: asyncio.Timeout) -> None:
        self._open.add(limit)
        self._idle.clear()

    def _leave(self, limit: asyncio.Timeout) -> None:
        self._open.remove(limit)
        if not self._open:
            self._idle.set()

    def _why_ended(self) -> ApiError:
        if self.is_draining:
            return EngineUnavailableError("The fleet is shutting down.", code="draining")
        return RequestTimeoutError(self._config.drain)

    async def _relay(self, request: ForwardedRequest, answer: RelayedAnswer) -> None:
        """Have the request answered by as many replicas, one after the other, as it takes."""
        blocks = prompt_blocks(request.body) if request.scope["method"] == "POST" else ()
        try:
            for attempt in range(MAX_ATTEMPTS):
                if await self._try(request, answer, blocks):
                    return
                logger.warning("an answer goes on at another replica")
                await asyncio.sleep(_PAUSE_SECONDS * 2**attempt)
                answer.begin_anew()
            message = f"The replicas that answered were lost, {MAX_ATTEMPTS} times in turn."
            await answer.fail(EngineUnavailableError(message))
        except NotContinuableError as error:
            logger.warning("an answer cannot go on: %s", error)
            await answer.fail(
                EngineUnavailableError(f"The replica that answered was lost. {error}")
            )
        except ApiError as error:
            await answer.fail(error)

    async def _try(
        self, request: ForwardedRequest, answer: RelayedAnswer, blocks: Sequence[str]
    ) -> bool:
        """Let one replica answer; False if it was lost, and with it what came of it.

        Raises:
            NotContinuableError: The client has a part that nobody can go on with.
        """
        try:
            answer.check_continuable()
            steps = self._replicas.answer(request, journal=answer.journal, blocks=blocks)
            async with aclosing(steps):
                async for some in steps:
                    await answer.take(some)
        except NotContinuableError:
            if answer.has_begun:
                raise
            answer.forget()
            return False
        except ReplicaLostError as error:
            logger.warning("a replica was lost: %s", error)
            return False
        if not answer.is_complete:
            await answer.fail(InternalError("A replica did not end its answer."))
        return True


async def _live(receive: Receive, send: Send) -> None:
    """Nothing is to be done at start or end; it is said all the same."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def _content(scope: Scope, exchange: Exchange) -> dict[str, object]:
    """What of a scope goes to a replica: with an id, and without what is not a client's to say."""
    own = {REQUEST_ID: exchange.request_id, **(exchange.trace.headers if exchange.trace else {})}
    added = {name.encode(): value.encode() for name, value in own.items()}
    dropped = _STRIPPED | added.keys()
    headers = [pair for pair in scope["headers"] if pair[0] not in dropped] + list(added.items())
    return {key: scope[key] for key in CONTENT if key in scope} | {"headers": headers}
