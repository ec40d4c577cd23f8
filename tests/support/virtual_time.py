"""An event loop whose time passes only while everybody sleeps, and then at once.

What is measured in it is exact to the last digit, however busy the machine; and a server that
answers by a script in that time, without a socket.
"""

from __future__ import annotations

import asyncio
import json
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

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
    """The loop itself."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def run_virtually(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


@dataclass(frozen=True)
class Script:
    """How one request is answered: parts of the body, each after a delay in seconds."""

    parts: Sequence[tuple[float, bytes]]
    status: int = 200


def token(text: str = "x") -> bytes:
    """An event with some text of a chat answer."""
    return event({"choices": [{"index": 0, "delta": {"content": text}}]})


def usage(prompt_tokens: int, completion_tokens: int) -> bytes:
    """The event that counts."""
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return event({"choices": [], "usage": counts})


def event(body: object) -> bytes:
    return f"data: {json.dumps(body)}\n\n".encode()


DONE = b"data: [DONE]\n\n"


class ScriptedTransport(httpx.AsyncBaseTransport):
    """Answers each request by the script that `choose` gives for its number.

    Args:
        choose: Called with 0 for the first request, 1 for the second, and so on.
        servers: Requests answered at once; the others wait for their turn, in order.
    """

    def __init__(self, choose: Callable[[int], Script], *, servers: int = 1_000_000) -> None:
        self._choose = choose
        self._free = asyncio.Semaphore(servers)
        self.bodies: list[dict[str, Any]] = []
        self.times: list[float] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"data": [{"id": "scripted"}]})
        self.times.append(asyncio.get_running_loop().time())
        self.bodies.append(json.loads(request.content))
        script = self._choose(len(self.bodies) - 1)
        await self._free.acquire()
        return httpx.Response(script.status, stream=_Stream(script, self._free))


class _Stream(httpx.AsyncByteStream):
    def __init__(self, script: Script, free: asyncio.Semaphore) -> None:
        self._script = script
        self._free = free

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for delay, part in self._script.parts:
            await asyncio.sleep(delay)
            yield part

    async def aclose(self) -> None:
        self._free.release()
