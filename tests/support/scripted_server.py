"""A real server on a real socket that answers every request with tokens after known delays."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from virtual_time import DONE, chunk, token, usage

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass
class Exchange:
    """What really happened to one request, on the clock that all loops of a machine share."""

    received: float
    """When its last byte was there."""
    written: list[float] = field(default_factory=list)
    """When each token was sent, however late its time was slept over."""


class ScriptedServer:
    """The first token after `first` seconds, each of the others `gap` after the one before.

    Args:
        first: Seconds to the first token.
        gap: Seconds between tokens.
    """

    def __init__(self, *, first: float, gap: float) -> None:
        self._first = first
        self._gap = gap
        self.exchanges: dict[str, Exchange] = {}
        """By the text of the request."""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while request := (await reader.readline()).decode():
                length = 0
                while (line := await reader.readline()).strip():
                    name, _, value = line.decode().partition(":")
                    length = int(value) if name.lower() == "content-length" else length
                body = await reader.readexactly(length)
                exchange = Exchange(asyncio.get_running_loop().time())
                if request.startswith("GET"):
                    await self._models(writer)
                else:
                    await self._stream(json.loads(body), exchange, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _models(self, writer: asyncio.StreamWriter) -> None:
        body = json.dumps({"object": "list", "data": [{"id": "scripted", "object": "model"}]})
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        writer.write(f"{head}\r\n\r\n{body}".encode())
        await writer.drain()

    async def _stream(
        self, body: dict[str, Any], exchange: Exchange, writer: asyncio.StreamWriter
    ) -> None:
        clock = asyncio.get_running_loop().time
        self.exchanges[body["messages"][0]["content"]] = exchange
        due = exchange.received + self._first
        writer.write(_HEAD)
        for _ in range(body["max_tokens"]):
            await asyncio.sleep(max(0.0, due - clock()))
            due += self._gap
            exchange.written.append(clock())
            writer.write(chunk(token()))
        writer.write(chunk(usage(5, body["max_tokens"])) + chunk(DONE) + b"0\r\n\r\n")
        await writer.drain()


@contextmanager
def scripted_server(*, first: float, gap: float) -> Iterator[tuple[str, ScriptedServer]]:
    """Run such a server in a thread of its own while the block does; gives its URL as well."""
    loop = asyncio.new_event_loop()
    script = ScriptedServer(first=first, gap=gap)
    server = loop.run_until_complete(asyncio.start_server(script.answer, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", script
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        if tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks))
        loop.run_until_complete(asyncio.sleep(0))  # what was closed last is closed by the loop
        loop.close()
