"""JournaledEngine: an AsyncEngine that reports each output of an exchange and can go on with one.

Whoever runs an exchange puts a Recorder in its context. An engine that dies says nothing to the
exchange: its answer can be continued elsewhere.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass

from server.engine.async_engine import AsyncEngine
from server.engine_status import EngineStatus
from server.request import Request, RequestOutput


@dataclass(frozen=True, slots=True)
class Recorder:
    """What an exchange had before it came here, and who is told what it gets."""

    earlier: Sequence[RequestOutput]
    """The outputs that another replica brought."""
    record: Callable[[RequestOutput], None]
    lose: Callable[[], None]
    """Called when the engine is dead and the answer unfinished."""


RECORDER: ContextVar[Recorder | None] = ContextVar("recorder", default=None)


class JournaledEngine(AsyncEngine):
    """An engine for replicas; without a recorder it is like any other."""

    async def generate(self, requests: Sequence[Request]) -> AsyncGenerator[RequestOutput, None]:
        """Say again what was brought earlier, then go on; see AsyncEngine."""
        recorder = RECORDER.get()
        if recorder is None:
            async with aclosing(super().generate(requests)) as outputs:
                async for output in outputs:
                    yield output
            return
        for output in recorder.earlier:
            yield output
        last = {output.request_id: output for output in recorder.earlier}
        open_requests = _after(recorder.earlier, requests)
        if not open_requests:
            return
        async with aclosing(super().generate(open_requests)) as outputs:
            async for output in outputs:
                if output.error is not None and self.status is EngineStatus.DEAD:
                    recorder.lose()
                    await asyncio.Event().wait()  # until the exchange is cancelled
                before = last.get(output.request_id, output)
                said = output._replace(num_cached_tokens=before.num_cached_tokens)
                recorder.record(said)
                yield said


def _after(earlier: Sequence[RequestOutput], requests: Sequence[Request]) -> list[Request]:
    """The requests that have not ended, each behind the tokens it was given."""
    token_ids: defaultdict[str, list[int]] = defaultdict(list)
    ended = set()
    for output in earlier:
        token_ids[output.request_id] += output.token_ids
        if output.finish_reason is not None:
            ended.add(output.request_id)
    going_on = [each for each in requests if each.request_id not in ended]
    for request in going_on:
        request.earlier_token_ids = tuple(token_ids[request.request_id])
    return going_on
