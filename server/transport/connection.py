"""The client's end of an HTTP exchange: how its body is read, and how its leaving is noticed.

Owns no request and decides nothing about one: it only cancels what was waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.errors import ApiError, BodyTooLargeError, InternalError, InvalidRequestError
from server.transport.wire import event

logger = logging.getLogger(__name__)
Result = TypeVar("Result")


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body.

    Raises:
        InvalidRequestError: It is compressed.
        BodyTooLargeError: It is, or says that it will be, longer than `limit` bytes.
        ClientDisconnect: The client left before it was complete.
    """
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() not in ("identity", ""):
        raise InvalidRequestError(
            f"The request body must not be compressed (got content-encoding '{encoding[:80]}').",
            code="unsupported_content_encoding",
        )
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise BodyTooLargeError(limit)
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            raise BodyTooLargeError(limit)
    return bytes(body)


async def unless_gone(receive: Receive, work: Awaitable[Result]) -> Result:
    """The result of `work`, which is cancelled as soon as the client leaves.

    Args:
        receive: The exchange's, its body read.
        work: What the client waits for.

    Raises:
        ClientDisconnect: The client left.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.wait({task, gone})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def error_event(error: ApiError) -> bytes:
    """The event that ends a stream which fails."""
    return event(error.body())


class EventStream(Response):
    """Sends server-sent events until they end, fail or the client leaves.

    Args:
        first: The first event, known before the status was.
        rest: The others; closed in the end, whatever happens.
        headers: More headers.
        on_end: Called once when nothing more will be sent.
        failure: Writes the event that ends a stream which fails.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        first: bytes,
        rest: AsyncGenerator[bytes, None],
        *,
        headers: Mapping[str, str],
        on_end: Callable[[], None],
        failure: Callable[[ApiError], bytes] = error_event,
    ) -> None:
        self._first = first
        self._rest = rest
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
                await self._send_head(send)
            else:
                await unless_gone(receive, self._send_all(send))
        except ClientDisconnect:
            logger.debug("a client left its stream")
        finally:
            await self._rest.aclose()
            self._on_end()

    async def _send_head(self, send: Send) -> None:
        await self._start(send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})

    async def _send_all(self, send: Send) -> None:
        await self._start(send)
        await _send_part(send, self._first)
        try:
            async for part in self._rest:
                await _send_part(send, part)
        except ApiError as error:
            await _send_part(send, self._failure(error))
        except Exception:
            logger.exception("a stream failed")
            failure = InternalError("The server failed while it wrote this answer.")
            await _send_part(send, self._failure(failure))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_part(send: Send, part: bytes) -> None:
    await send({"type": "http.response.body", "body": part, "more_body": True})
