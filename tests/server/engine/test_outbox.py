"""server.engine.outbox: everything that came, in order, once."""

from __future__ import annotations

import asyncio
import contextlib

from server.engine.outbox import Outbox
from server.request import RequestOutput


def ids(outputs: list[RequestOutput]) -> str:
    return "".join(output.request_id for output in outputs)


def test_a_reader_takes_all_that_has_come():
    """In the order it came, and nothing twice; who comes early waits."""

    async def run() -> None:
        outbox = Outbox()
        for name in "ab":
            outbox.put(RequestOutput(request_id=name))
        assert ids(await outbox.take()) == "ab"
        taking = asyncio.create_task(outbox.take())
        await asyncio.sleep(0)
        assert not taking.done()
        for name in "cd":
            outbox.put(RequestOutput(request_id=name))
        assert ids(await taking) == "cd"

    asyncio.run(run())


def test_what_nobody_waits_for_any_more_is_kept():
    """A wait that is given up loses nothing."""

    async def run() -> None:
        outbox = Outbox()
        taking = asyncio.create_task(outbox.take())
        await asyncio.sleep(0)
        taking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await taking
        outbox.put(RequestOutput(request_id="a"))
        assert ids(await outbox.take()) == "a"

    asyncio.run(run())
