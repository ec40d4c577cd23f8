"""A real server on a real socket that answers every request with tokens after known delays."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from virtual_time import DONE, token, usage

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class ScriptedServer:
    """The first token after `first` seconds, each of the others `gap` after the one before.

    Args:
        first: Seconds to the first token.
        gap: Seconds between tokens.
    """

    def __init__(self, *, first: float, gap: float) -> None:
        self._first = first
        self._gap = gap
        self.written: list[float] = []
        """When each token was really sent, on the clock that all loops of a machine share."""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while request := (await reader.readline()).decode():
                length = 0
                while (line := await reader.readline()).strip():
                    name, _, value = line.decode().partition(":")
                    length = int(value) if name.lower() == "content-length" else length
                body = await reader.readexactly(length)
                if request.startswith("GET"):
                    await self._models(writer)
                else:
                    await self._stream(json.loads(body), writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _models(self, writer: asyncio.StreamWriter) -> None:
        body = json.dumps({"object": "list", "data": [{"id": "scripted", "object": "model"}]})
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        writer.write(f"{head}\r\n\r\n{body}".encode())
        await writer.drain()

    async def _stream(self, body: dict[str, object], writer: asyncio.StreamWriter) -> None:
        clock = asyncio.get_running_loop().time
        due = clock() + self._first
        writer.write(_HEAD)
        limit = body.get("max_tokens") or body.get("max_completion_tokens")
        assert isinstance(limit, int)
        for _ in range(limit):
            await asyncio.sleep(max(0.0, due - clock()))
            due += self._gap
            self.written.append(clock())
            writer.write(_chunk(token()))
        writer.write(_chunk(usage(5, limit)) + _chunk(DONE) + b"0\r\n\r\n")
        await writer.drain()


def _chunk(part: bytes) -> bytes:
    return f"{len(part):x}\r\n".encode() + part + b"\r\n"


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
        loop.close()
