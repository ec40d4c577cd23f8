"""HttpClient: requests to one server over connections that are kept, and opened ahead.

For measuring: it follows no redirects, goes through no proxy and tries nothing twice, so that
what a request took is what this request took. One exception is counted: a kept connection that
the server closed before it said a byte says nothing of the request, which is sent once more.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Self
from urllib.parse import SplitResult, urlsplit
from weakref import WeakSet

from server.errors import ConfigurationError
from server.tools.loadtest.http_connection import (
    Answer,
    ExchangeError,
    HttpConnection,
    StaleConnectionError,
)


class HttpClient:
    """As many connections to a server as there are requests under way; entered as a context.

    Args:
        url: The server; what stands after its name begins every path.
        headers: Sent with each request.
        timeout: Seconds without a byte after which a request has failed; None for no such limit.

    Raises:
        ConfigurationError: The URL is none of HTTP, or a header cannot be sent.
    """

    def __init__(
        self, url: str, *, headers: Mapping[str, str] | None = None, timeout: float | None
    ) -> None:
        self.url = url.rstrip("/")
        self._parts = _split(self.url)
        self._timeout = timeout
        self._fixed = _head_lines({"Host": self._parts.netloc, **(headers or {})})
        self._tls = ssl.create_default_context() if self._parts.scheme == "https" else None
        self._connections: WeakSet[HttpConnection] = WeakSet()
        self._idle: list[HttpConnection] = []

    async def __aenter__(self) -> Self:
        """Connections are opened as they are needed."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close them all."""
        for connection in self._connections:
            connection.close()
        await asyncio.sleep(0)  # they are closed once the loop has seen to it

    async def open(self, count: int) -> None:
        """Have so many connections ready.

        Raises:
            ExchangeError: The server cannot be reached.
        """
        missing = count - sum(connection.is_usable for connection in self._idle)
        self._idle += await asyncio.gather(*(self._connect() for _ in range(missing)))

    async def get(self, path: str) -> tuple[int, bytes]:
        """Ask for something; gives the status and the body.

        Raises:
            ExchangeError: There is no whole answer.
        """
        answer = _WholeAnswer()
        await self._send(f"GET {self._parts.path}{path} HTTP/1.1\r\n", b"", answer)
        return answer.status, bytes(answer.body)

    async def post(self, path: str, body: bytes, answer: Answer) -> None:
        """Send JSON, and wait until the answer is whole.

        Raises:
            ExchangeError: It is not, or the server cannot be reached.
        """
        head = f"POST {self._parts.path}{path} HTTP/1.1\r\nContent-Type: application/json\r\n"
        await self._send(f"{head}Content-Length: {len(body)}\r\n", body, answer)

    async def _send(self, head: str, body: bytes, answer: Answer) -> None:
        request = f"{head}{self._fixed}\r\n".encode("latin-1") + body
        connection = self._take() or await self._connect()
        try:
            await connection.exchange(request, answer)
        except StaleConnectionError:
            connection = await self._connect()
            await connection.exchange(request, answer)
        await asyncio.sleep(0)  # so that a server that closes it now is not sent the next one
        if connection.is_usable:
            self._idle.append(connection)

    def _take(self) -> HttpConnection | None:
        """The connection that was idle for the shortest time, which the server has not closed."""
        while self._idle:
            if (connection := self._idle.pop()).is_usable:
                return connection
        return None

    async def _connect(self) -> HttpConnection:
        host, port = self._parts.hostname or "", self._parts.port or (443 if self._tls else 80)
        try:
            async with asyncio.timeout(self._timeout):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: HttpConnection(timeout=self._timeout), host, port, ssl=self._tls
                )
        except TimeoutError:
            raise ExchangeError("timeout", f"no connection in {self._timeout:g} s") from None
        except OSError as error:
            raise ExchangeError("connection refused", str(error)) from error
        self._connections.add(connection)
        return connection


class _WholeAnswer:
    """Keeps an answer."""

    def __init__(self) -> None:
        self.status = 0
        self.body = bytearray()

    def on_sent(self, now: float) -> None:
        """Not of interest."""

    def on_status(self, status: int) -> None:
        self.status = status

    def on_data(self, data: bytes, _: float) -> None:
        self.body += data


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.username is not None or not url.isascii() or not url.isprintable():
        raise ConfigurationError(f"expected a URL such as http://127.0.0.1:8000 (got {url})")
    return parts


def _head_lines(headers: Mapping[str, str]) -> str:
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()):
            raise ConfigurationError(f"the header {name} can only be sent in printable ASCII")
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())
