"""server.api.transport.deadline: what comes in time is passed on, and the rest is ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from server.api.transport.deadline import within
from server.errors import RequestTimeoutError


class Source:
    """Counts, and remembers that it was closed."""

    def __init__(self, stop: int, *, hangs_at: int | None = None) -> None:
        self.closed = False
        self._stop = stop
        self._hangs_at = hangs_at

    async def items(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(self._stop):
                if number == self._hangs_at:
                    await asyncio.Event().wait()
                yield number
        finally:
            self.closed = True


def test_what_ends_in_time_passes_whole():
    """A limit that is not reached changes nothing."""

    async def run() -> None:
        source = Source(5)
        assert [item async for item in within(60, source.items())] == list(range(5))
        assert source.closed

    asyncio.run(run())


def test_what_hangs_is_closed_and_said():
    """The items before come through; then the source is closed and the error names the limit."""

    async def run() -> None:
        source = Source(5, hangs_at=3)
        items = within(0.05, source.items())
        assert [await anext(items) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(RequestTimeoutError, match=r"limit of 0\.05 seconds"):
            await anext(items)
        assert source.closed

    asyncio.run(run())


def test_each_item_may_be_awaited_by_another_task():
    """A stream waits for each of its events in a task of its own."""

    async def run() -> None:
        items = within(60, Source(3).items())
        for number in range(3):
            assert await asyncio.create_task(anext(items)) == number
        await items.aclose()

    asyncio.run(run())


def test_closing_early_closes_the_source():
    """Who leaves before the end ends what was waited for."""

    async def run() -> None:
        source = Source(5)
        items = within(60, source.items())
        await anext(items)
        await items.aclose()
        assert source.closed

    asyncio.run(run())
