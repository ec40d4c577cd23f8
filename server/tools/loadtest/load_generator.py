"""LoadGenerator: sends requests in a closed or an open loop, and watches itself.

Closed loop: so many clients, each with an open connection, sending its next request when the last
has ended; the server sets the pace, and a latency counts from when the request was handed to the
socket. Open loop: requests are sent at their own times whatever the server does, and each latency
counts from the intended time; so a stall is charged to everyone who would have met it, and there
is no coordinated omission. What can be done before the clock runs is: the bodies are ready.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from server.tools.loadtest.arrivals import arrival_times
from server.tools.loadtest.stream_client import StreamClient, StreamRecord
from server.tools.loadtest.workload import Prompt

BUSY = 0.7
"""The part of one core above which the client itself is taken to be in the way."""
LATE_SECONDS = 0.005
"""The 99th percentile of sending late above which it is, too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """How hard to push: exactly one of the two is given."""

    concurrency: int | None = None
    rate: float | None = None
    """Requests per second."""
    burstiness: float = 1.0
    """Of the gaps between requests: 1 is a Poisson process, less comes in bursts."""

    def __str__(self) -> str:
        if self.rate is not None:
            return f"{self.rate:g} requests/s"
        return f"{self.concurrency} at once"


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadResult:
    """One level of load, measured."""

    load: Load
    started: float
    """On the loop's clock, as the records' times are."""
    duration: float
    """Seconds from the start to the last end."""
    records: list[StreamRecord]
    cpu_share: float
    """Processor seconds of this client for each second of the test; 1 is a whole core."""
    num_unfinished: int = 0
    """Requests that had not ended when the test was interrupted, or were not sent any more."""

    @property
    def lateness(self) -> list[float]:
        """Seconds by which each request of an open loop was sent later than intended, in order."""
        return sorted(
            record.sent - record.intended for record in self.records if record.intended is not None
        )

    @property
    def warning(self) -> str | None:
        """Why the client may have been the bottleneck; None if it was not."""
        late = self.lateness
        latest = late[int(0.99 * (len(late) - 1))] if late else 0.0
        if self.cpu_share > BUSY:
            return (
                f"this client used {100 * self.cpu_share:.0f} % of a core: it may have been the "
                "bottleneck, and latencies may be its own"
            )
        if latest > LATE_SECONDS:
            return (
                f"one request in a hundred was sent {1000 * latest:.0f} ms late or more: the "
                "client could not keep to the rate (the latencies include this delay)"
            )
        return None


class LoadGenerator:
    """Runs levels of load, one after the other.

    Args:
        client: Sends the requests.
        on_record: Told of every request twice: when it is sent, and when it has ended.
        processor_time: Seconds of processor this program has used.
    """

    def __init__(
        self,
        client: StreamClient,
        *,
        on_record: Callable[[StreamRecord], None] = lambda _: None,
        processor_time: Callable[[], float] = time.process_time,
    ) -> None:
        self._client = client
        self._on_record = on_record
        self._processor_time = processor_time

    async def run(self, prompts: Sequence[Prompt], load: Load, *, seed: int = 0) -> LoadResult:
        """Send all prompts and wait for their ends; of a run that is cancelled, give what ended."""
        loop = asyncio.get_running_loop()
        bodies = [self._client.body(prompt) for prompt in prompts]
        if load.rate is None:
            clients = min(load.concurrency or 1, len(bodies))
            await self._client.connect(clients)
            started, used = loop.time(), self._processor_time()
            records = await _until_cancelled(self._closed, bodies, clients)
        else:
            times = arrival_times(
                len(bodies), rate=load.rate, burstiness=load.burstiness, seed=seed
            )
            started, used = loop.time(), self._processor_time()
            intended = [started + offset for offset in times]
            records = await _until_cancelled(self._open, bodies, intended)
        duration = max(loop.time() - started, 1e-9)
        return LoadResult(
            load=load,
            started=started,
            duration=duration,
            records=records,
            cpu_share=(self._processor_time() - used) / duration,
            num_unfinished=len(bodies) - len(records),
        )

    async def _closed(
        self, records: list[StreamRecord], bodies: Sequence[bytes], clients: int
    ) -> None:
        """Each of the clients takes the next request as soon as it is free."""
        waiting = iter(bodies)

        async def client() -> None:
            for body in waiting:
                record = StreamRecord()
                records.append(record)
                await self._send(body, record)

        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(client())

    async def _open(
        self, records: list[StreamRecord], bodies: Sequence[bytes], times: Sequence[float]
    ) -> None:
        """Each request goes out at its time, however many are under way."""
        records += [StreamRecord(intended=intended) for intended in times]
        clock = asyncio.get_running_loop().time
        async with asyncio.TaskGroup() as group:
            for body, intended, record in zip(bodies, times, records, strict=True):
                await asyncio.sleep(max(0.0, intended - clock()))
                group.create_task(self._send(body, record))

    async def _send(self, body: bytes, record: StreamRecord) -> None:
        self._on_record(record)
        await self._client.send(body, record)
        self._on_record(record)


async def _until_cancelled(
    send: Callable[[list[StreamRecord], Sequence[bytes], Any], Awaitable[None]],
    bodies: Sequence[bytes],
    pace: object,
) -> list[StreamRecord]:
    """The records of all requests that ended, be it because somebody wanted to wait no longer."""
    records: list[StreamRecord] = []
    try:
        await send(records, bodies, pace)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        task.uncancel()
    return [record for record in records if record.ended]
