"""server.api.transport.event_stream: the parts of a stream in their order, comments in silences."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest
from starlette.requests import ClientDisconnect

from server.api.transport.event_stream import EventStream, KeepAlive, begin
from server.errors import InternalError

COMMENT = b": quiet\n\n"
INTERVAL = 0.02
LONG = 0.1


async def never() -> dict:
    await asyncio.Event().wait()
    return {}


async def gone() -> dict:
    return {"type": "http.disconnect"}


class Exchange:
    """What is sent of a stream of these parts; a number is a wait, an error is raised.

    Args:
        parts: In their order.
    """

    def __init__(self, *parts: bytes | float | Exception) -> None:
        self._parts = parts
        self.sent: list[bytes] = []
        self.is_closed = False
        self.has_ended = False

    async def events(self) -> AsyncGenerator[bytes, None]:
        try:
            for part in self._parts:
                if isinstance(part, float):
                    await asyncio.sleep(part)
                elif isinstance(part, Exception):
                    raise part
                else:
                    yield part
        finally:
            self.is_closed = True

    async def send(self, message: dict) -> None:
        if message["type"] == "http.response.body" and message["body"]:
            self.sent.append(message["body"])

    async def run(
        self,
        *,
        receive: Callable[[], Awaitable[dict]] = never,
        send: Callable[[dict], Awaitable[None]] | None = None,
    ) -> list[bytes]:
        def end() -> None:
            self.has_ended = True

        events = self.events()
        stream = EventStream(
            await begin(never, events, patience=INTERVAL),
            events,
            headers={},
            keep_alive=KeepAlive(INTERVAL, COMMENT),
            on_end=end,
        )
        await stream({"method": "POST"}, receive, send or self.send)
        assert self.is_closed
        assert self.has_ended
        assert len(asyncio.all_tasks()) == 1
        return self.sent


def test_parts_are_sent_as_they_are_and_in_order():
    """Nothing is added to a stream that is never silent."""
    assert asyncio.run(Exchange(b"a", b"b", b"c").run()) == [b"a", b"b", b"c"]


def test_silences_carry_comments_before_the_first_part_and_between_parts():
    """Each lasts for some intervals, and the parts stay in their order."""
    sent = asyncio.run(Exchange(LONG, b"a", LONG, b"b").run())
    first, second = sent.index(b"a"), sent.index(b"b")
    assert first > 1
    assert second - first > 2
    assert {*sent[:first], *sent[first + 1 : second]} == {COMMENT}
    assert sent[second:] == [b"b"]


def test_a_client_that_does_not_read_is_not_sent_comments():
    """They would wait in line behind the part that it does not take."""
    exchange = Exchange(b"a", b"b")

    async def slow(message: dict) -> None:
        if message.get("body") == b"b":
            await asyncio.sleep(LONG)
        await exchange.send(message)

    assert asyncio.run(exchange.run(send=slow)) == [b"a", b"b"]


def test_what_fails_before_the_status_is_raised():
    """So that it can have a status of its own."""
    exchange = Exchange(InternalError("no first part"))
    with pytest.raises(InternalError, match="no first part"):
        asyncio.run(exchange.run())


@pytest.mark.parametrize("begun", [(b"a",), (LONG,)])
@pytest.mark.parametrize("error", [InternalError("ours"), RuntimeError("a fault")])
def test_what_fails_later_ends_the_stream_with_an_error_event(begun, error):
    """Whether a part or only a comment has been sent; a fault is not told in its own words."""
    sent = asyncio.run(Exchange(*begun, error).run())
    assert b'"error"' in sent[-1]
    assert b"a fault" not in sent[-1]


@pytest.mark.parametrize("begun", [(b"a", 9.0), (9.0,)])
def test_a_client_that_leaves_ends_the_making_of_parts(begun):
    """Even of the first, when only comments have been sent."""
    exchange = Exchange(*begun)
    asyncio.run(exchange.run(receive=gone))
    assert b"" not in exchange.sent


def test_a_client_that_leaves_before_the_first_part_ends_its_making():
    """The wait for it is over when that is said."""
    exchange = Exchange(9.0, b"a")

    async def run() -> None:
        with pytest.raises(ClientDisconnect):
            await begin(gone, exchange.events(), patience=9)
        assert exchange.is_closed
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())
