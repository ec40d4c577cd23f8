"""Replica: one engine and the unchanged application over it, in a process that Ray Serve runs.

Its environment is not that of whoever started the fleet, so it is told everything. It answers
forwarded requests step by step, so that a front can have them continued elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ray import serve
from starlette.types import Message

from server.api.app import create_app
from server.api.handlers.access import CHANCE, log_to_stdout
from server.api.observability.trace_export import make_tracer
from server.api.transport.chance import Chance
from server.engine.fingerprint import fingerprint
from server.engine.loaded_engine import build_engine
from server.engine.prefix_store import keep_prefixes
from server.engine_status import EngineStatus
from server.fleet.fleet_config import FleetConfig
from server.fleet.journal import (
    ForwardedRequest,
    Journal,
    NotContinuableError,
    Opened,
    ReplicaLostError,
    Step,
)
from server.fleet.journaled_engine import RECORDER, JournaledEngine, Recorder

logger = logging.getLogger(__name__)


class Replica:
    """What Ray Serve starts, asks for its health, calls and ends.

    Args:
        settings: The fields of FleetConfig, all of them.
    """

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, settings: Mapping[str, Any]
    ) -> None:
        config = _own_store(FleetConfig(**settings))
        logging.basicConfig(level=(config.log_level or "info").upper(), stream=sys.stderr)
        if config.access_log:
            log_to_stdout(with_probes=config.log_level == "debug")
        self._grace = config.grace
        self._name = str(serve.get_replica_context().replica_id.unique_id)
        self._engine = JournaledEngine(lambda: keep_prefixes(build_engine(config), config))
        self._app = create_app(self._engine, config, tracer=make_tracer(config, replica=self._name))
        await self._engine.start()
        info = self._engine.info
        self._fingerprint = await asyncio.to_thread(fingerprint, info, config)
        logger.info("replica %s computes the bits %s", self._name, self._fingerprint or "of nobody")

    async def __del__(self) -> None:
        """Let the engine finish; Ray waits before for whatever runs, and awaits this."""
        with suppress(AttributeError):  # it did not come so far as to have one
            await self._engine.stop(self._grace)

    def check_health(self) -> None:
        """Tell Ray to replace this replica if its engine is dead.

        Raises:
            ReplicaLostError: It is.
        """
        if self._engine.status is EngineStatus.DEAD:
            raise ReplicaLostError(self._engine.error or "The engine is dead.")

    async def status(self) -> str:
        """What the engine can do now."""
        return self._engine.status.value

    async def metrics(self) -> tuple[str, str]:
        """The replica's name, and what its /metrics shows."""
        body = bytearray()

        async def send(message: Message) -> None:
            body.extend(message.get("body", b""))

        scope = {"type": "http", "method": "GET", "path": "/metrics", "headers": [],
                 "query_string": b""}  # fmt: skip
        await self._app(scope, _Client(b"").receive, send)
        return self._name, body.decode()

    async def answer(
        self,
        request: ForwardedRequest,
        *,
        journal: Journal,
        blocks: Sequence[str] = (),  # noqa: ARG002 - the router's
    ) -> AsyncGenerator[list[Step], None]:
        """Answer a request, behind what another replica has answered already.

        Yields:
            Steps: one at first, then as many as came while the last were sent.

        Raises:
            NotContinuableError: The answer was begun with other bits than this engine computes.
            ReplicaLostError: The engine died.
        """
        self.check_health()
        same = self._fingerprint is not None and self._fingerprint == journal.fingerprint
        if journal.outputs and not same:
            raise NotContinuableError(
                "The answer was begun by a replica that computes other bits than this one."
            )
        steps: asyncio.Queue[Step | None] = asyncio.Queue()
        run = asyncio.create_task(self._run(request, journal, steps))
        run.add_done_callback(lambda _: steps.put_nowait(None))
        try:
            yield [Opened(self._name, self._fingerprint)]
            while batch := await _next(steps):
                yield batch
            self.check_health()
            await run
        finally:
            run.cancel()
            await asyncio.wait({run})

    async def _run(
        self, request: ForwardedRequest, journal: Journal, steps: asyncio.Queue[Step | None]
    ) -> None:
        """Run the application over one exchange."""
        RECORDER.set(Recorder(journal.outputs, steps.put_nowait, lambda: steps.put_nowait(None)))

        async def send(message: Message) -> None:
            steps.put_nowait(message)

        chance = Chance(request.secret, request.began)
        scope = {**request.scope, "asgi": {"version": "3.0"}, "extensions": {CHANCE: chance}}
        await self._app(scope, _Client(request.body).receive, send)


def _own_store(config: FleetConfig) -> FleetConfig:
    """The configuration with a prefix store for each rank: a successor finds its predecessor's."""
    if config.prefix_store is None:
        return config
    number = serve.get_replica_context().rank.rank
    return config.model_copy(update={"prefix_store": config.prefix_store / f"replica-{number}"})


class _Client:
    """The other end of a forwarded exchange: it sends a body, and leaves by being cancelled."""

    def __init__(self, body: bytes) -> None:
        self._messages: list[Message] = [{"type": "http.request", "body": body}]

    async def receive(self) -> Message:
        """The body; then nothing for as long as somebody waits."""
        if self._messages:
            return self._messages.pop()
        gone: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        return await gone


async def _next(steps: asyncio.Queue[Step | None]) -> list[Step]:
    """Wait for a step and take all that are there; none when the answer has ended."""
    found: list[Step] = []
    step = await steps.get()
    while step is not None:
        found.append(step)
        if steps.empty():
            return found
        step = steps.get_nowait()
    if found:
        steps.put_nowait(None)
    return found
