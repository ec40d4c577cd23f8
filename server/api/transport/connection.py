"""The client's end of an HTTP exchange: how its body is read, and how its leaving is noticed.

Owns no request and decides nothing about one: it only cancels what was waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from server.errors import BodyTooLargeError, InvalidRequestError, UnsupportedMediaTypeError

Result = TypeVar("Result")

_DRAINED_BYTES = 16 * 2**20
_DRAIN_SECONDS = 2.0
"""What is still read of a body that is too large, and for how long, before it is refused."""


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body.

    Raises:
        InvalidRequestError: It is compressed.
        UnsupportedMediaTypeError: A page of another site sends it as what needs no preflight.
        BodyTooLargeError: It is, or says that it will be, longer than `limit` bytes.
        ClientDisconnect: The client left before it was complete.
    """
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() not in ("identity", ""):
        raise InvalidRequestError(
            f"The request body must not be compressed (got content-encoding '{encoding[:80]}').",
            code="unsupported_content_encoding",
        )
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if "origin" in request.headers and media_type != "application/json":
        raise UnsupportedMediaTypeError(media_type)
    announced = request.headers.get("content-length", "")
    stream = request.stream()
    if announced.isdecimal() and int(announced) > limit:
        if "expect" not in request.headers:  # else the client waits to be asked for it
            await _drain(stream)
        raise BodyTooLargeError(limit)
    body = bytearray()
    async for part in stream:
        body += part
        if len(body) > limit:
            body.clear()
            await _drain(stream)
            raise BodyTooLargeError(limit)
    return bytes(body)


async def _drain(stream: AsyncGenerator[bytes, None]) -> None:
    """Read on for a moment and keep nothing.

    Closing on a client that still sends resets the connection, and takes the answer with it.
    """
    left = _DRAINED_BYTES
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for part in stream:
                left -= len(part)
                if left < 0:
                    return


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
