"""HttpConnection: one kept connection to a server, which tells when the bytes of answers arrive.

Made for measuring. The clock is read as soon as bytes are there, before anything looks at them;
a request is one write; the framing is parsed by C. So a client of a thousand tokens a second uses
under a hundredth of a core, and takes no part in what it measures.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

import httptools


class ExchangeError(Exception):
    """A request that got no whole answer.

    Args:
        kind: A word or two by which such failures are counted.
        detail: What happened.
    """

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class StaleConnectionError(ExchangeError):
    """The server closed a connection that was kept, before it said a byte about the request."""


class Answer(Protocol):
    """Is told of a request and its answer as they go; times are those of the loop's clock."""

    def on_sent(self, now: float) -> None:
        """The bytes of the request go to the socket now."""

    def on_status(self, status: int) -> None:
        """The head of the answer is there."""

    def on_data(self, data: bytes, now: float) -> None:
        """A part of the body, which arrived at this time."""


class HttpConnection(asyncio.Protocol):
    """Carries one request after the other, once it is connected.

    Args:
        timeout: Seconds without a byte after which a request has failed; None for no such limit.
    """

    def __init__(self, *, timeout: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: Answer | None = None
        self._end: asyncio.Future[None] | None = None
        self._heard = 0.0
        self._has_length = False
        self._is_kept = True
        self._was_used = False
        self._has_heard = False

    @property
    def is_usable(self) -> bool:
        """Whether it is open and has nothing under way."""
        open_ = self._transport is not None and not self._transport.is_closing()
        return open_ and self._end is None

    async def exchange(self, request: bytes, answer: Answer) -> None:
        """Send a request, head and body, and wait for the end of its answer.

        Raises:
            ExchangeError: The connection broke, or was silent for too long.
        """
        assert self.is_usable, "one request at a time"
        assert self._transport is not None, "what is usable is connected"
        self._parser = httptools.HttpResponseParser(self)
        self._answer = answer
        self._end = self._loop.create_future()
        self._has_length = self._has_heard = False
        self._heard = self._loop.time()
        answer.on_sent(self._heard)
        self._transport.write(request)
        watch = self._loop.create_task(self._watch()) if self._timeout is not None else None
        try:
            await self._end
        except BaseException:
            self.close()
            raise
        finally:
            self._answer = self._end = None
            self._was_used = True
            if watch is not None:
                watch.cancel()
        if not self._is_kept:
            self.close()

    def close(self) -> None:
        """Close it, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()

    async def _watch(self) -> None:
        """Fail the exchange when nothing has come for too long."""
        assert self._timeout is not None
        while (left := self._heard + self._timeout - self._loop.time()) > 0:
            await asyncio.sleep(left)
        self._fail("timeout", f"nothing came for {self._timeout:g} s")

    def _fail(self, kind: str, detail: str, error: type[ExchangeError] = ExchangeError) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_exception(error(kind, detail))

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is connected."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Bytes are there."""
        self._heard = self._loop.time()
        self._has_heard = True
        if self._end is None:
            self.close()  # nothing was asked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail("connection lost", f"this is no HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed; which is the end of a body whose length was not told."""
        if exc is None and self._status() and not self._has_length:
            self.on_message_complete()
        is_stale = self._was_used and not self._has_heard
        self._fail(
            "connection lost",
            repr(exc) if exc else "the server closed the connection",
            StaleConnectionError if is_stale else ExchangeError,
        )

    # Called by the parser.

    def on_header(self, name: bytes, _: bytes) -> None:
        """A line of the head."""
        self._has_length |= name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        """The head is parsed."""
        if self._answer is not None and self._status() >= 200:
            self._answer.on_status(self._status())

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        if self._answer is not None:
            self._answer.on_data(body, self._heard)

    def on_message_complete(self) -> None:
        """The answer is whole, unless it was only the notice of one to come."""
        if self._end is not None and not self._end.done() and self._status() >= 200:
            self._is_kept = self._parser.should_keep_alive()
            self._end.set_result(None)

    def _status(self) -> int:
        return int(self._parser.get_status_code())
