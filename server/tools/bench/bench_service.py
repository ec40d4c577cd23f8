"""What a server is like to use: how it starts, waits, repeats itself, and keeps its streams going.

Measured by its clients, each figure against the server's own usual; no other engine is asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import count, pairwise
from statistics import median

from server.tools.bench.bench_server import BenchServer, records_of
from server.tools.loadtest.stream_client import StreamRecord
from server.tools.loadtest.workload import Lengths, random_prompts

_IDLE_SECONDS = 4.0
_SETTLING_SECONDS = 0.5
_POLL_SECONDS = 0.005
_SHORTEST_GAP = 1e-5
"""Seconds; what arrives together has no gap, and no model is so fast that this is the usual."""
_FIRST_SEED = 1_000_000
"""Other prompts than those of the tasks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceSizes:
    """What is asked of a server; lengths are in words, about a token each."""

    streams: int = 8
    """Streams that a long prompt comes beside."""
    stream_words: int = 128
    """Length of their prompts."""
    usual_tokens: int = 48
    """Tokens of each stream by which its usual gap is known."""
    stream_tokens: int = 1024
    """What a stream may write while the long prompt is read; it is cut off when that is done."""
    long_words: int = 4096
    """Length of the long prompt."""
    prefix_words: int = 1000
    """Length of a beginning that two requests share."""
    end_words: int = 8
    """What each of them has beside it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceFigures:
    """What was found; each a median of several tries where it says so."""

    seconds_to_first_token: float
    """From the start of the process."""
    idle_share: float | None
    """Processor time of a server that waits, as a part of one processor; None if unknown."""
    prefix_share: float
    """Time to the first token of a request whose beginning is cached, as a part of the time of
    one whose beginning is not; the median."""
    gap_ratio: float
    """The 99th percentile of the gaps in streams while a long prompt is read, in usual gaps; the
    median."""
    longest_gap_ratio: float
    """The longest of those gaps; the median."""

    sizes: ServiceSizes
    """What they were measured with."""

    def to_json(self) -> dict[str, object]:
        """All of them."""
        return asdict(self)


class ServiceBench:
    """Measures a server through its socket.

    Args:
        server: Running, and nobody else's.
        sizes: What is asked of it.
    """

    def __init__(self, server: BenchServer, sizes: ServiceSizes) -> None:
        self._server = server
        self._sizes = sizes
        self._seeds = count(_FIRST_SEED)

    def measure(self, *, repeat: int) -> ServiceFigures:
        """Measure everything, once more often than is counted, as first times are slow."""
        prefixes = [asyncio.run(self._prefix_share()) for _ in range(repeat + 1)][1:]
        gaps = [asyncio.run(self._gaps()) for _ in range(repeat + 1)][1:]
        return ServiceFigures(
            seconds_to_first_token=self._server.seconds_to_first_token,
            idle_share=self._idle_share(),
            prefix_share=median(prefixes),
            gap_ratio=median(ratio for ratio, _ in gaps),
            longest_gap_ratio=median(longest for _, longest in gaps),
            sizes=self._sizes,
        )

    def _idle_share(self) -> float | None:
        time.sleep(_SETTLING_SECONDS)
        before, started = self._server.processor_seconds, time.monotonic()
        time.sleep(_IDLE_SECONDS)
        after, seconds = self._server.processor_seconds, time.monotonic() - started
        return None if before is None or after is None else (after - before) / seconds

    async def _prefix_share(self) -> float:
        """Two requests, one after the other, that differ in their last words."""
        sizes = self._sizes
        lengths = Lengths(
            input_words=sizes.end_words, output_tokens=1, prefix_words=sizes.prefix_words
        )
        prompts = random_prompts(2, lengths, seed=next(self._seeds))
        cold, warm = records_of(prompts)
        async with self._server.connect() as http:
            await self._server.send(http, prompts[0], cold)
            await self._server.send(http, prompts[1], warm)
        return (warm.ended - warm.sent) / (cold.ended - cold.sent)

    async def _gaps(self) -> tuple[float, float]:
        """Begin the streams, then send a long prompt beside them."""
        sizes = self._sizes
        lengths = Lengths(input_words=sizes.stream_words, output_tokens=sizes.stream_tokens)
        prompts = random_prompts(sizes.streams, lengths, seed=next(self._seeds))
        longest = Lengths(input_words=sizes.long_words, output_tokens=1)
        newcomer = random_prompts(1, longest, seed=next(self._seeds))[0]
        streams, record = records_of(prompts), StreamRecord()
        try:
            async with self._server.connect() as http, asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._server.send(http, prompt, stream))
                    for prompt, stream in zip(prompts, streams, strict=True)
                ]
                while min(len(stream.arrivals) for stream in streams) < sizes.usual_tokens:
                    await asyncio.sleep(_POLL_SECONDS)
                await self._server.send(http, newcomer, record)
                for task in tasks:
                    task.cancel()
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return gap_ratios(streams, began=record.sent, ended=record.ended)


def gap_ratios(
    streams: Sequence[StreamRecord], *, began: float, ended: float
) -> tuple[float, float]:
    """Gaps that touch [began, ended] over the usual gap before: the 99th percentile, the longest.

    Times are as in the records.
    """
    usual, disturbed = [], []
    for stream in streams:
        for earlier, later in pairwise(stream.arrivals):
            if later <= began:
                usual.append(later - earlier)
            elif earlier < ended:
                disturbed.append(later - earlier)
    disturbed.sort()
    percentile = disturbed[min(len(disturbed) - 1, len(disturbed) * 99 // 100)]
    gap = max(median(usual), _SHORTEST_GAP)
    return percentile / gap, disturbed[-1] / gap
