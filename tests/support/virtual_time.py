"""An event loop whose time passes only while everybody sleeps, and then at once.

What is measured in it is exact to the last digit, however busy the machine. Its connections lead,
without a socket, to a server that answers by a script in that time.
"""

from __future__ import annotations

import asyncio
import json
import selectors
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

Result = TypeVar("Result")


class _Selector(selectors.SelectSelector):
    """Never waits: the time it was to wait is added to the loop's clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if not found and timeout is not None and timeout > 0:
            self.now += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop itself.

    Args:
        server: What all connections lead to; without one they are refused.
    """

    def __init__(self, server: VirtualServer | None = None) -> None:
        self._virtual = _Selector()
        self._server = server
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    async def create_connection(self, protocol_factory: Any, *_: Any, **__: Any) -> Any:
        if self._server is None:
            raise ConnectionRefusedError("nobody listens")
        protocol = protocol_factory()
        line = _Line(self._server, protocol)
        self._server.lines.append(line)
        protocol.connection_made(line)
        return line, protocol


def run_virtually(work: Coroutine[Any, Any, Result], server: VirtualServer | None = None) -> Result:
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(server)) as runner:
        return runner.run(work)


@dataclass(frozen=True)
class Script:
    """How one request is answered: parts of the body, each after a delay in seconds.

    Args:
        parts: An exception instead of bytes is how the connection breaks; None is its end.
        status: Of the answer.
        framed: Whether the parts are bodies of chunks, after a head; else they are all that is
            sent.
    """

    parts: Sequence[tuple[float, bytes | Exception | None]]
    status: int = 200
    framed: bool = True


def token(text: str = "x") -> bytes:
    """An event with some text of a chat answer."""
    return event({"choices": [{"index": 0, "delta": {"content": text}}]})


def usage(prompt_tokens: int, completion_tokens: int) -> bytes:
    """The event that counts."""
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return event({"choices": [], "usage": counts})


def event(body: object) -> bytes:
    return f"data: {json.dumps(body)}\n\n".encode()


def chunk(part: bytes) -> bytes:
    """A part of a body whose length is not told in its head."""
    return f"{len(part):x}\r\n".encode() + part + b"\r\n"


DONE = b"data: [DONE]\n\n"


class VirtualServer:
    """Answers each request by the script that `choose` gives for its number.

    Args:
        choose: Called with 0 for the first request that is sent something, 1 for the second.
        servers: Requests answered at once; the others wait for their turn, in order.
    """

    def __init__(self, choose: Callable[[int], Script], *, servers: int = 1_000_000) -> None:
        self._choose = choose
        self._free = asyncio.Semaphore(servers)
        self.lines: list[_Line] = []
        self.heads: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.times: list[float] = []

    def script(self, head: str, body: bytes) -> Script:
        """What to answer."""
        self.heads.append(head)
        if head.startswith("GET"):
            return Script([(0, json.dumps({"data": [{"id": "scripted"}]}).encode())])
        self.times.append(asyncio.get_running_loop().time())
        self.bodies.append(json.loads(body))
        return self._choose(len(self.bodies) - 1)

    async def play(self, script: Script, line: _Line) -> None:
        """Answer."""
        async with self._free:
            if script.framed:
                head = f"HTTP/1.1 {script.status} X\r\nTransfer-Encoding: chunked\r\n\r\n"
                line.protocol.data_received(head.encode())
            for delay, part in script.parts:
                await asyncio.sleep(delay)
                if isinstance(part, bytes):
                    line.protocol.data_received(chunk(part) if script.framed else part)
                else:
                    line.end(part)
                    return
            if script.framed:
                line.protocol.data_received(b"0\r\n\r\n")


class _Line(asyncio.Transport):
    """One connection, as its client sees it."""

    def __init__(self, server: VirtualServer, protocol: Any) -> None:
        super().__init__()
        self.protocol = protocol
        self._server = server
        self._answering: asyncio.Task[None] | None = None
        self._is_closing = False

    def write(self, data: Any) -> None:
        head, _, body = bytes(data).partition(b"\r\n\r\n")
        script = self._server.script(head.decode(), body)
        self._answering = asyncio.create_task(self._server.play(script, self))

    def is_closing(self) -> bool:
        return self._is_closing

    def end(self, reason: Exception | None) -> None:
        """It is over for both sides."""
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, reason)

    def abort(self) -> None:
        if self._answering is not None:
            self._answering.cancel()
        self.end(None)
