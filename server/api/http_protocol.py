"""HttpProtocol: one connection of a client, on top of uvicorn's own for httptools.

Adds what uvicorn does not have: limits on request lines and headers, and on the time they take;
refusals in the one error shape; answers without chunks for clients of HTTP/1.0. A head is bounded
before it is parsed, so that its cost is linear in its bytes, whatever they are.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NoReturn

from starlette.types import Message
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from server.api.handlers.access import error_response
from server.errors import (
    ApiError,
    HeadersTooLargeError,
    InvalidRequestError,
    RequestReadTimeoutError,
)

HEAD_SECONDS = 30.0
"""What a client gets from the first byte of a request to the end of its headers."""
_SLICE = 16_384
"""Bytes that are parsed at once while they may belong to a head."""
_UNREAD_SECONDS = 1.0
_UNREAD_BYTES = 8_000_000
"""What a refused client may still send, so that it comes to read the refusal."""


_NO_HTTP = InvalidRequestError("The request is not valid HTTP.", code="invalid_http")


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """How large the head of a request may be, in bytes."""

    line: int
    """Of the request line, and of each header."""
    whole: int


class HttpProtocol(HttpToolsProtocol):
    """Serves one connection; belongs to the event loop.

    Args:
        limits: Of each head; the other arguments are uvicorn's.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: HeadLimits,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._in_head = True
        self._num_unfinished = 0
        """Bytes since the last that were part of a body, or since this head began."""
        self._num_head = 0
        """Bytes of this head that the parser has told of."""
        self._num_unread: int | None = None
        """Bytes that came after a refusal; None if there was none."""
        self._num_ignored = 0
        """Bytes of a body that was answered before it was read."""
        self._rejection: ApiError | None = None
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what has come, as long as it keeps to the limits."""
        if self._num_unread is not None:
            self._drop(len(data))
            return
        if self._in_head and self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up_on_head)
        if len(data) <= _SLICE:
            self._parse(data)
            return
        rest = memoryview(data)
        while rest and self._num_unread is None and self.parser is not None:
            # A body is handed on as it is; what may be a head, or goes on without end, is not.
            size = _SLICE if self._in_head or self._num_unfinished else len(rest)
            self._parse(bytes(rest[:size]))
            rest = rest[size:]

    def _parse(self, data: bytes) -> None:
        """Parse a piece; of what never ends no more is kept than the limit and a slice."""
        self._num_unfinished += len(data)
        super().data_received(data)
        if self._num_unread is None and self._num_unfinished > self._limits.whole + _SLICE:
            what = f"headers of more than {self._limits.whole} bytes in all"
            self._refuse(HeadersTooLargeError(what))

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._in_head = True
        self._num_head = self._num_unfinished = self._num_ignored = 0

    def on_url(self, url: bytes) -> None:
        """The target, or a part of it."""
        super().on_url(url)
        self._num_head += len(url)
        if len(self.url) > self._limits.line:
            self._reject(f"a request line of more than {self._limits.line} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A whole header, of a head or behind a body in chunks."""
        self._num_head += len(name) + len(value) + len(b": \r\n")
        if len(name) + len(value) > self._limits.line:
            self._reject(f"a header of more than {self._limits.line} bytes")
        if self._num_head > self._limits.whole:
            self._reject(f"headers of more than {self._limits.whole} bytes in all")
        if self._in_head:  # what follows a body is not looked at
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole: let it be answered."""
        self._in_head = False
        self._num_unfinished = 0
        self._stop_head_timer()
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0" and self.cycle is not None:
            _CloseDelimited.send_through(self.cycle)

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._num_unfinished = 0
        if self.cycle.response_complete:
            self._num_ignored += len(body)
            if self._num_ignored > _UNREAD_BYTES:
                self.transport.abort()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole; what follows is the next one's head."""
        super().on_message_complete()
        self._in_head = True
        self._num_unfinished = 0

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's words
        """Refuse what the parser refused, or we in its midst."""
        self._refuse(self._rejection or _NO_HTTP)

    def _reject(self, what: str) -> NoReturn:
        """Stop the parser; `send_400_response` is what follows."""
        self._rejection = HeadersTooLargeError(what)
        raise self._rejection

    def _give_up_on_head(self) -> None:
        self._refuse(RequestReadTimeoutError("head", HEAD_SECONDS))

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, error: ApiError) -> None:
        """Answer with an error and close, unless an earlier request is still being answered."""
        if self._num_unread is not None or self.transport.is_closing():
            return
        self._num_unread = 0
        self._stop_head_timer()
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()
            return
        self.transport.write(self._refusal(error))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_UNREAD_SECONDS, self.transport.close)

    def _refusal(self, error: ApiError) -> bytes:
        path = getattr(self, "url", b"").partition(b"?")[0].decode("latin-1")
        answer = error_response(error, path[:200])
        status = HTTPStatus(answer.status_code)
        lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode()]
        headers = [
            *self.server_state.default_headers,
            *answer.raw_headers,
            (b"connection", b"close"),
        ]
        lines += [name + b": " + value for name, value in headers]
        return b"\r\n".join([*lines, b"", bytes(answer.body)])

    def _drop(self, num_bytes: int) -> None:
        """What a refused client goes on to send is not kept, and not listened to for long."""
        assert self._num_unread is not None
        self._num_unread += num_bytes
        if self._num_unread > _UNREAD_BYTES:
            self.transport.abort()


class _CloseDelimited:
    """Sends an answer to a client of HTTP/1.0: its end, where no length is given, is the close.

    uvicorn would send it in chunks, which such a client takes for a part of the answer.

    Args:
        cycle: The exchange, before its answer begins.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._send = cycle.send
        self._has_length = True

    @classmethod
    def send_through(cls, cycle: RequestResponseCycle) -> None:
        """Let an exchange be answered so."""
        cycle.send = cls(cycle)._send_part  # type: ignore[assignment,method-assign]  # noqa: SLF001

    async def _send_part(self, message: Message) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", ())}
            self._has_length = b"content-length" in names
        if not self._has_length:
            self._cycle.chunked_encoding = False
            self._cycle.expected_content_length = len(message.get("body", b""))
        await self._send(message)  # type: ignore[arg-type]  # ASGI's, by another name
