"""Mixed traffic against a server in its own process, which must be afterwards as it was before.

KVSERVE_LOAD_SECONDS is how long the traffic lasts: short in CI, ten minutes by hand.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import httpx
import pytest
from server_process import ServerProcess, server_process
from serving import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SECONDS = float(os.environ.get("KVSERVE_LOAD_SECONDS", "15"))
PATIENCE = 180
"""Seconds after which something hangs; nothing is timed otherwise."""
NUM_CLIENTS = 24
GROWTH = 24 * 2**20
"""Bytes by which memory may differ after traffic that the server has seen before."""
SHAPE = {
    "type": "object",
    "properties": {"kind": {"enum": ["owl", "bat"]}, "old": {"type": "boolean"}},
    "required": ["kind", "old"],
    "additionalProperties": False,
}
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server(checkpoint) -> Iterator[ServerProcess]:
    with server_process(
        checkpoint("rand-llama-tied"),
        max_num_seqs=16,
        kv_cache_memory=2 * 2**20,  # less than 16 long requests need: some must give way
        log_level="error",
    ) as server:
        yield server


class Traffic:
    """Clients of every kind, each doing one thing after another.

    Args:
        client: Shared by all.
        source: Decides who does what.
    """

    def __init__(self, client: httpx.AsyncClient, source: random.Random) -> None:
        self._client = client
        self._source = source
        self._kinds: tuple[Callable[[], Awaitable[None]], ...] = (
            self.short, self.long, self.left_stream, self.left_answer, self.refused,
            self.constrained, self.seeded, self.choices, self.scored, self.watched,
        )  # fmt: skip
        self.num_done: Counter[str] = Counter()

    async def run(self, seconds: float) -> None:
        """Keep NUM_CLIENTS clients busy for some time."""
        end = time.monotonic() + seconds

        async def work() -> None:
            while time.monotonic() < end:
                kind = self._source.choice(self._kinds)
                await kind()
                self.num_done[kind.__name__] += 1

        await asyncio.gather(*(work() for _ in range(NUM_CLIENTS)))

    async def _answer(self, body: dict, path: str = "/v1/completions") -> dict:
        answer = await self._client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def _prompt(self, longest: int) -> list[int]:
        return [self._source.randrange(32, 127) for _ in range(self._source.randrange(1, longest))]

    async def short(self) -> None:
        """A chat of a few tokens."""
        answer = await self._answer({"messages": HI, "max_tokens": 4}, "/v1/chat/completions")
        assert answer["choices"][0]["finish_reason"] in ("stop", "length")

    async def long(self) -> None:
        """A prompt and a streamed answer of hundreds of tokens."""
        body = {"prompt": self._prompt(250), "max_tokens": 200, "stream": True, "ignore_eos": True}
        async with self._client.stream("POST", "/v1/completions", json=body) as answer:
            lines = [line async for line in answer.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]"

    async def left_stream(self) -> None:
        """A stream whose client leaves after a few chunks."""
        body = {"prompt": self._prompt(60), "max_tokens": 400, "stream": True, "ignore_eos": True}
        num_chunks = self._source.randrange(4)
        async with self._client.stream("POST", "/v1/completions", json=body) as answer:
            async for _ in answer.aiter_lines():
                if not num_chunks:
                    break
                num_chunks -= 1

    async def left_answer(self) -> None:
        """A request whose client leaves before the answer."""
        body = {"prompt": self._prompt(60), "max_tokens": 400, "ignore_eos": True, "n": 3}
        task = asyncio.ensure_future(self._client.post("/v1/completions", json=body))
        await asyncio.sleep(self._source.uniform(0, 0.3))
        task.cancel()
        await asyncio.wait({task})

    async def refused(self) -> None:
        """What cannot be served, for one reason or another."""
        body = self._source.choice(
            (
                {"prompt": ""},
                {"prompt": "a", "max_tokens": 100_000},
                {"prompt": "a", "min_pp": 1},
                {"prompt": "a", "temperature": -1},
                {"prompt": [10**9]},
                {"prompt": "a", "structured_outputs": {"regex": "("}},
            )
        )
        answer = await self._client.post("/v1/completions", json=body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["type"] == "invalid_request_error"

    async def constrained(self) -> None:
        """An answer that a schema constrains."""
        form = {"type": "json_schema", "json_schema": {"name": "animal", "schema": SHAPE}}
        body = {"messages": HI, "response_format": form, "temperature": 1.5, "max_tokens": 100}
        answer = await self._answer(body, "/v1/chat/completions")
        assert answer["choices"][0]["finish_reason"] == "stop"
        animal = json.loads(answer["choices"][0]["message"]["content"])
        assert animal["kind"] in ("owl", "bat")
        assert isinstance(animal["old"], bool)

    async def seeded(self) -> None:
        """The same seed twice."""
        body = {"prompt": "seed", "seed": self._source.randrange(99), "temperature": 1.0}
        first, second = [
            (await self._answer(body | {"max_tokens": 24}))["choices"][0]["text"] for _ in range(2)
        ]
        assert first == second

    async def choices(self) -> None:
        """Several prompts and choices."""
        answer = await self._answer({"prompt": ["a", "b"], "n": 3, "max_tokens": 9, "logprobs": 2})
        assert len(answer["choices"]) == 6

    async def scored(self) -> None:
        """A prompt that is scored."""
        body = {"prompt": self._prompt(300), "echo": True, "max_tokens": 0, "logprobs": 1}
        answer = await self._answer(body)
        assert answer["usage"]["completion_tokens"] == 0

    async def watched(self) -> None:
        """A look at the cache and the requests."""
        for path in ("/kv", "/requests", "/metrics", "/health"):
            assert (await self._client.get(path)).status_code == 200


def test_after_mixed_traffic_the_server_is_as_before(server):
    """Memory, threads, files and the cache's use return to what they were under earlier traffic.

    The cache's own books are checked when the server ends.
    """

    async def traffic(seconds: float) -> Counter[str]:
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:
            crowd = Traffic(client, random.Random(seconds))
            await crowd.run(seconds)
            return crowd.num_done

    def settled() -> tuple[int, int, int]:
        assert wait_until(lambda: server.is_idle, PATIENCE)
        assert wait_until(lambda: server.num_files <= num_files, PATIENCE)
        assert server.gauge("vllm:kv_cache_usage_perc") == 0
        return server.num_threads, server.resident_bytes, server.num_files

    assert httpx.get(f"{server.url}/health").status_code == 200
    num_files = server.num_files + 2
    asyncio.run(traffic(SECONDS / 3))
    before = settled()
    done = asyncio.run(traffic(SECONDS * 2 / 3))
    after = settled()
    print(f"{dict(done)}; threads, memory, files: {before} -> {after}")  # noqa: T201 - for -s
    assert len(done) == 10
    assert after[0] <= before[0]
    assert after[1] <= before[1] + GROWTH


def test_a_server_that_waits_sleeps(server):
    """Nothing in a server wakes up by itself: not its event loop, its engine or its kernels."""
    assert httpx.post(f"{server.url}/v1/completions", json={"prompt": "a"}).status_code == 200
    assert wait_until(lambda: server.is_idle, PATIENCE)
    time.sleep(1)  # what the request left behind settles
    before = server.num_sleeps
    time.sleep(2)
    assert server.num_sleeps - before <= 2  # it woke twenty times to look at the clock


def test_slow_readers_stall_nobody(server):
    """Clients that do not read their streams keep nobody waiting, and lose nothing themselves."""
    body = json.dumps(
        {
            "prompt": "slow", "n": 8, "max_tokens": 480, "ignore_eos": True, "logprobs": 20,
            "stream": True, "temperature": 1,
        }
    ).encode()  # fmt: skip
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    host, port = httpx.URL(server.url).host, httpx.URL(server.url).port
    slow: list[socket.socket] = []
    try:
        for _ in range(4):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(PATIENCE)
            connection.connect((host, port))
            connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            slow.append(connection)
        for connection in slow:
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
            for _ in range(5):
                answer = client.post("/v1/completions", json={"prompt": "quick", "max_tokens": 9})
                assert answer.status_code == 200
        patient, *leaving = slow
        for connection in leaving:
            connection.close()
        received = b"".join(iter(lambda: patient.recv(1 << 16), b""))
        assert received.count(b'"finish_reason":"length"') == 8
        assert b"data: [DONE]" in received
    finally:
        for connection in slow:
            connection.close()
    assert wait_until(lambda: server.is_idle, PATIENCE)
    assert server.gauge("vllm:kv_cache_usage_perc") == 0


def test_500_connections_at_once(server):
    """Five hundred streams that are open together are each answered as if they were alone."""

    def body(number: int) -> dict:
        return {"prompt": f"request {number:03}", "max_tokens": 8, "temperature": 0, "stream": True}

    async def text(client: httpx.AsyncClient, number: int) -> str:
        said = ""
        async with client.stream("POST", "/v1/completions", json=body(number)) as answer:
            assert answer.status_code == 200
            lines = [line.removeprefix("data: ") async for line in answer.aiter_lines() if line]
        assert lines.pop() == "[DONE]"
        for line in lines:
            said += json.loads(line)["choices"][0]["text"]
        return said

    async def crowd() -> tuple[list[str], list[str]]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=server.url, timeout=PATIENCE, limits=limits
        ) as client:
            together = await asyncio.gather(*(text(client, number) for number in range(500)))
            alone = [await text(client, number) for number in range(0, 500, 25)]
        return together, alone

    together, alone = asyncio.run(crowd())
    assert together[::25] == alone
    assert wait_until(lambda: server.is_idle, PATIENCE)
