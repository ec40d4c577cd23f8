"""From the engine's outputs to what is sent: one whole answer, or server-sent events.

A Writer makes the answer; this drives it, fills silence with comments, and leaves to a thread what
takes long to write. Never waits for anything but the engine's outputs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import TypeVar

from server.answers.choices import Piece, join
from server.answers.writer import Writer
from server.request import RequestOutput
from server.transport.wire import encode_patiently

_MANY_SCORES = 256
"""Tokens with log-probabilities from which on an answer is written in a thread."""
Result = TypeVar("Result")


async def collect(writer: Writer, outputs: AsyncGenerator[RequestOutput, None]) -> bytes:
    """The whole answer as JSON.

    Raises:
        ApiError: A request failed; the others are aborted.
    """
    pieces: list[list[Piece]] = [[] for _ in writer.call.requests]
    num_scores = 0
    async with aclosing(outputs):
        async for output in outputs:
            index, piece = await _aside(output, writer.feed)
            pieces[index].append(piece)
            num_scores += len(piece.scored) + len(output.prompt_logprobs or ())
    joined = [join(gained) for gained in pieces]
    if num_scores > _MANY_SCORES:
        return await asyncio.to_thread(lambda: encode_patiently(writer.answer(joined)))
    return writer.encode(writer.answer(joined))


async def _aside(output: RequestOutput, work: Callable[[RequestOutput], Result]) -> Result:
    """What comes of an output; in a thread if the scores of a prompt make that long."""
    if output.prompt_logprobs is None:
        return work(output)
    return await asyncio.to_thread(work, output)


async def events(
    writer: Writer, outputs: AsyncGenerator[RequestOutput, None], *, keep_alive: float
) -> AsyncGenerator[bytes, None]:
    """The answer as server-sent events; closing this iterator aborts what still runs.

    Args:
        writer: Makes the chunks.
        outputs: The engine's; closed in the end.
        keep_alive: Seconds of silence after which a comment is sent.

    Raises:
        ApiError: A request failed; the others are aborted.
    """
    async with aclosing(outputs), aclosing(_punctual(outputs, keep_alive)) as arrivals:
        async for output in arrivals:
            if output is None:
                yield writer.keep_alive
                continue
            parts = await _aside(output, writer.parts)
            for part in parts:
                yield part
            if writer.finished:
                break  # nothing may come between the last token and the usage
    for part in writer.ending():
        yield part


async def _punctual(
    outputs: AsyncIterator[RequestOutput], interval: float
) -> AsyncGenerator[RequestOutput | None, None]:
    """The outputs, and None whenever there was none for `interval` seconds."""
    arrivals = _Arrivals(interval)
    reader = asyncio.ensure_future(arrivals.read(outputs))
    try:
        while not isinstance(arrival := await arrivals.queue.get(), _End):
            yield arrival
        await reader  # raises what ended it
    finally:
        arrivals.stop()
        reader.cancel()
        await asyncio.wait({reader})


class _End:
    """Nothing will arrive any more."""


class _Arrivals:
    """What came, and silences, in one queue: a task and a timer for a stream, none for an output.

    Args:
        interval: Seconds that make a silence.
    """

    def __init__(self, interval: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._interval = interval
        self._last = self._loop.time()
        self._timer = self._loop.call_later(interval, self._look)
        self.queue: asyncio.Queue[RequestOutput | _End | None] = asyncio.Queue()
        """Outputs, and None for a silence."""

    async def read(self, outputs: AsyncIterator[RequestOutput]) -> None:
        """Put all outputs into the queue, and behind them the end, whatever brought it."""
        try:
            async for output in outputs:
                self._last = self._loop.time()
                self.queue.put_nowait(output)
        finally:
            self.queue.put_nowait(_End())

    def stop(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look(self) -> None:
        """Report a silence, or come back when there could be one."""
        now = self._loop.time()
        if now - self._last >= self._interval:
            self._last = now
            self.queue.put_nowait(None)
        self._timer = self._loop.call_at(self._last + self._interval, self._look)
