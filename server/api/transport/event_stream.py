"""EventStream: server-sent events on their way to one client, and comments in long silences.

Owns no request and decides nothing about one: closing the events is what ends their making. The
status is sent with the first event, or when that has not come for as long as makes a silence.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.api.transport.connection import unless_gone
from server.api.transport.wire import KEEP_ALIVE, event
from server.errors import ApiError, InternalError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Keep-alive of a stream: how long a silence is, and the comment that ends it."""

    interval: float
    """Seconds that make a silence."""
    comment: bytes = KEEP_ALIVE


def error_event(error: ApiError) -> bytes:
    """The event that ends a stream which fails."""
    return event(error.body())


async def begin(
    receive: Receive, events: AsyncGenerator[bytes, None], *, patience: float
) -> asyncio.Task[bytes]:
    """Wait for the first event, `patience` seconds at most.

    Returns:
        The first event, or the wait for it.

    Raises:
        ClientDisconnect: The client left.
        Exception: Whatever kept the first event from being made.
    """
    first = asyncio.ensure_future(anext(events))
    try:
        await unless_gone(receive, asyncio.wait({first}, timeout=patience))
        if first.done():
            first.result()
    except BaseException:
        await _abandon(first)
        raise
    return first


async def _abandon(task: asyncio.Task[bytes]) -> None:
    task.cancel()
    await asyncio.wait({task})


class EventStream(Response):
    """Sends server-sent events until they end, fail or the client leaves.

    Args:
        first: The first event, as `begin` has it.
        rest: The others; closed in the end, whatever happens.
        headers: More headers.
        keep_alive: What is sent in a silence.
        on_end: Called once when nothing more will be sent.
        failure: Writes the event that ends a stream which fails.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        first: asyncio.Task[bytes],
        rest: AsyncGenerator[bytes, None],
        *,
        headers: Mapping[str, str],
        keep_alive: KeepAlive,
        on_end: Callable[[], None],
        failure: Callable[[ApiError], bytes] = error_event,
    ) -> None:
        self._first = first
        self._rest = rest
        self._keep_alive = keep_alive
        self._on_end = on_end
        self._failure = failure
        self.status_code = 200
        self.background = None
        self.body = b""
        self.init_headers({**headers, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the exchange."""
        try:
            if scope["method"] == "HEAD":
                await self._start(send)
                await _end(send)
            else:
                await unless_gone(receive, self._send_all(send))
        except ClientDisconnect:
            logger.debug("a client left its stream")
        finally:
            await _abandon(self._first)
            await self._rest.aclose()
            self._on_end()

    async def _start(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})

    async def _send_all(self, send: Send) -> None:
        await self._start(send)
        async with _Sender(send, self._keep_alive) as sender:
            if not self._first.done():
                await sender.send(self._keep_alive.comment)
            try:
                await sender.send(await self._first)
                async for part in self._rest:
                    await sender.send(part)
            except ApiError as error:
                await sender.send(self._failure(error))
            except Exception:
                logger.exception("a stream failed")
                failure = InternalError("The server failed while it wrote this answer.")
                await sender.send(self._failure(failure))
        await _end(send)


class _Sender:
    """Sends parts of a stream, and by itself a comment whenever none came for a while.

    There is one timer for a stream, and nothing to be set for a part but a number.

    Args:
        send: The exchange's.
        keep_alive: The comment, and how long a silence is.
    """

    def __init__(self, send: Send, keep_alive: KeepAlive) -> None:
        self._send = send
        self._keep_alive = keep_alive
        self._loop = asyncio.get_running_loop()
        self._silent_since = self._loop.time()
        self._timer = self._loop.call_later(keep_alive.interval, self._look)
        self._comment: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Look for silences from now on."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Look no more, and let a comment get out that is on its way."""
        self._timer.cancel()
        if self._comment is not None:
            await self._comment

    async def send(self, part: bytes) -> None:
        """Send a part; while the client does not read it, no comment is sent."""
        self._silent_since = math.inf
        await self._send({"type": "http.response.body", "body": part, "more_body": True})
        self._silent_since = self._loop.time()

    def _look(self) -> None:
        """Comment on a silence, or come back when there could be one."""
        now, interval = self._loop.time(), self._keep_alive.interval
        if now - self._silent_since >= interval:
            self._silent_since = now
            self._comment = self._loop.create_task(self._send_comment(now))
        self._timer = self._loop.call_at(min(self._silent_since, now) + interval, self._look)

    async def _send_comment(self, silent_since: float) -> None:
        """Send a comment if no part has come in between: none may stand behind the last."""
        if self._silent_since == silent_since:
            await self.send(self._keep_alive.comment)


async def _end(send: Send) -> None:
    await send({"type": "http.response.body", "body": b"", "more_body": False})
