"""From the engine's outputs to what is sent: one whole answer, or server-sent events.

A Writer makes the answer; this drives it, and leaves to a thread what takes long to write. Never
waits for anything but the engine's outputs.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

from server.api.answers.choices import Piece, join
from server.api.answers.writer import Writer
from server.api.transport.wire import encode_patiently
from server.api.transport.workers import Pool
from server.request import RequestOutput

_MANY_SCORES = 256
"""Tokens with log-probabilities from which on an answer is written in a thread."""
Result = TypeVar("Result")


async def collect(
    writer: Writer, outputs: AsyncGenerator[RequestOutput, None], writing: Pool
) -> bytes:
    """The whole answer as JSON.

    Args:
        writer: Makes it.
        outputs: The engine's; closed in the end.
        writing: Does what takes long.

    Raises:
        ApiError: A request failed; the others are aborted.
    """
    pieces: list[list[Piece]] = [[] for _ in writer.call.requests]
    num_scores = 0
    async with aclosing(outputs):
        async for output in outputs:
            index, piece = await _aside(output, writer.feed, writing)
            pieces[index].append(piece)
            num_scores += len(piece.scored) + len(output.prompt_logprobs or ())
    joined = [join(gained) for gained in pieces]
    if num_scores > _MANY_SCORES:
        return await writing.run(lambda: encode_patiently(writer.answer(joined)))
    return writer.encode(writer.answer(joined))


async def _aside(
    output: RequestOutput, work: Callable[[RequestOutput], Result], writing: Pool
) -> Result:
    """Run `work` on an output, in a worker thread if it carries the scores of a prompt."""
    if output.prompt_logprobs is None:
        return work(output)
    return await writing.run(lambda: work(output))


async def events(
    writer: Writer, outputs: AsyncGenerator[RequestOutput, None], writing: Pool
) -> AsyncGenerator[bytes, None]:
    """The answer as server-sent events; closing this iterator aborts what still runs.

    Args:
        writer: Makes the chunks.
        outputs: The engine's; closed in the end.
        writing: Does what takes long.

    Raises:
        ApiError: A request failed; the others are aborted.
    """
    async with aclosing(outputs):
        async for output in outputs:
            parts = (
                writer.parts(output)
                if output.prompt_logprobs is None
                else await _aside(output, writer.parts, writing)
            )
            for part in parts:
                yield part
            if not writer.num_open:
                break
    for part in writer.ending():
        yield part
