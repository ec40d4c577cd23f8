"""No client stops the server for the others: work has its place, its bounds and its client."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from fakes import FakeEngine
from serving import serving, wait_until

from server.engine.grammars.grammar import Grammar, GrammarError, GrammarSource

ROOT = Path(__file__).parents[3]
CHOICE = {"prompt": "a", "max_tokens": 1, "structured_outputs": {"choice": ["yes"]}}
PLAIN = {"prompt": "a", "max_tokens": 1}


class Compiler:
    """Compiles until it is told to end, or until nobody waits."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.num_begun = 0
        self.num_abandoned = 0

    def knows(self, source: GrammarSource) -> bool:
        return False

    def compile(self, source: GrammarSource, is_over: threading.Event) -> Grammar:
        self.num_begun += 1
        while not self.free.is_set():
            if is_over.wait(0.01):
                self.num_abandoned += 1
                break
        raise GrammarError("it took too long")


@pytest.fixture
def compiler():
    found = Compiler()
    yield found
    found.free.set()


def test_compiling_has_a_place_of_its_own(compiler):
    """While sixteen grammars wait to be compiled, others are answered at once."""
    engine = FakeEngine()
    engine.grammars = compiler
    with serving(engine) as url, ThreadPoolExecutor(16) as pool:
        compiling = [
            pool.submit(httpx.post, f"{url}/v1/completions", json=CHOICE, timeout=60)
            for _ in range(16)
        ]
        assert wait_until(lambda: compiler.num_begun == 1)
        for _ in range(20):
            answer = httpx.post(f"{url}/v1/completions", json=PLAIN, timeout=10)
            assert answer.status_code == 200
            assert httpx.post(f"{url}/tokenize", json={"prompt": "a"}).status_code == 200
        assert compiler.num_begun == 1
        compiler.free.set()
        assert {each.result().status_code for each in compiling} == {400}


def test_compiling_ends_with_its_client(compiler):
    """One that leaves ends the work that is done for it, and those that waited do not begin."""
    engine = FakeEngine()
    engine.grammars = compiler
    with serving(engine) as url:
        address, raw = httpx.URL(url), json.dumps(CHOICE).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
        clients = [socket.create_connection((address.host, address.port)) for _ in range(8)]
        for client in clients:
            client.sendall(head.encode() + raw)
        assert wait_until(lambda: compiler.num_begun == 1)
        time.sleep(0.2)
        for client in clients[1:]:
            client.close()
        time.sleep(0.2)
        clients[0].close()
        assert wait_until(lambda: compiler.num_abandoned == 1)
        assert httpx.post(f"{url}/v1/completions", json=PLAIN).status_code == 200
        assert compiler.num_begun == 1


STUCK_SERVER = """
import sys, threading
from fakes import FakeEngine
from server.api.http_server import open_socket, serve
from server.config import ServerConfig
engine = FakeEngine("x")
engine.tokenizer.encode = lambda *args, **kwargs: threading.Event().wait()
bound = open_socket("127.0.0.1", 0)
tell = lambda: print(bound.getsockname()[1], flush=True)
sys.exit(serve(engine, ServerConfig(port=0, grace=1, log_level="error"), bound, on_ready=tell))
"""


@pytest.mark.parametrize("num_signals", [1, 2])
def test_a_signal_ends_a_server_whose_threads_are_stuck(num_signals):
    """The first within the grace time and a few seconds, with code 0; the second at once."""
    command = [sys.executable, "-c", STUCK_SERVER]
    paths = f"{ROOT}:{ROOT / 'tests' / 'support'}"
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": paths}
    ) as child:
        try:
            url = f"http://127.0.0.1:{int(child.stdout.readline())}"
            with ThreadPoolExecutor(6) as pool:
                for _ in range(6):
                    pool.submit(httpx.post, f"{url}/v1/completions", json=PLAIN, timeout=60)
                time.sleep(0.5)
                for number in range(num_signals):
                    time.sleep(0.2 * number)
                    child.send_signal(signal.SIGTERM)
                code = child.wait(30)
        finally:
            child.kill()
    assert code == (0 if num_signals == 1 else 128 + signal.SIGTERM)


def test_waiting_for_a_first_event_does_not_outlive_the_client():
    """A body that is still prepared when its client leaves becomes no request."""

    async def main() -> FakeEngine:
        engine = FakeEngine()
        begun, free = threading.Event(), threading.Event()
        encode = engine.tokenizer.encode

        def slow(text: str, **options: bool) -> list[int]:
            begun.set()
            free.wait(20)
            return encode(text, **options)

        engine.tokenizer.encode = slow
        with serving(engine) as url:
            async with httpx.AsyncClient() as client:
                task = asyncio.create_task(client.post(f"{url}/v1/completions", json=PLAIN))
                await asyncio.to_thread(begun.wait, 20)
                task.cancel()
                await asyncio.wait({task})
            await asyncio.sleep(0.1)
            free.set()
            await asyncio.sleep(0.1)
        return engine

    assert asyncio.run(main()).requests == []


class PanicError(BaseException):
    """What a native library throws when it fails: no Exception."""


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize",
                                  "/v1/messages", "/v1/responses", "/v1/attention"])  # fmt: skip
def test_a_panic_of_a_library_is_one_clean_error(path):
    """Wherever a text is tokenised: the one shape, and the next request is served."""
    engine, encode = FakeEngine(), FakeEngine().tokenizer.encode

    def panic(text: str, **options: bool) -> list[int]:
        if "panic" in text:
            raise PanicError("index out of bounds")
        return encode(text, **options)

    engine.tokenizer.encode = panic
    turns = [{"role": "user", "content": "panic"}]
    bodies = {
        "/v1/chat/completions": {"messages": turns},
        "/v1/messages": {"messages": turns, "max_tokens": 1},
        "/v1/responses": {"input": "panic"},
    }
    with serving(engine) as url, httpx.Client(base_url=url, timeout=30) as client:
        answer = client.post(path, json=bodies.get(path, {"prompt": "panic"}))
        assert answer.status_code == 500
        assert "failed to answer" in answer.json()["error"]["message"]
        assert client.post("/v1/completions", json=PLAIN).status_code == 200
