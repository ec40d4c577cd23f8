"""server.api.http_server: sockets, loading while listening, and what signals do."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path

import fake_server
import httpx
import pytest
from fakes import FakeEngine
from serving import serving

from server.api.app import create_app
from server.api.http_server import DrainingServer, open_socket, serve
from server.config import ServerConfig
from server.errors import ConfigurationError

ROOT = Path(__file__).parents[3]


@contextmanager
def process(*, step_seconds: float, grace: float) -> Iterator[tuple[subprocess.Popen, str]]:
    """A server in its own process, with its URL."""
    support = Path(fake_server.__file__).parent
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{support}"}
    command = [sys.executable, fake_server.__file__, str(step_seconds), str(grace)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        yield child, f"http://127.0.0.1:{int(child.stdout.readline())}"
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def stream_during(child: subprocess.Popen, url: str, *, then: Callable[[], None]) -> str:
    """The text of a stream that begins, sees SIGTERM and `then`, and ends."""
    body = {"prompt": "a", "stream": True, "max_tokens": 100}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=30) as response:
        parts = response.iter_text()
        text = next(parts)
        child.send_signal(signal.SIGTERM)
        then()
        return text + "".join(parts)


def test_sigterm_lets_a_stream_finish_and_refuses_others():
    """The stream ends well, /ready is 503, new requests are refused, and the exit code is 0."""
    with process(step_seconds=0.02, grace=20) as (child, url), httpx.Client(base_url=url) as client:

        def refused() -> None:
            while client.get("/ready").status_code == 200:
                pass
            answer = client.post("/v1/completions", json={"prompt": "a"})
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "draining"
            assert client.get("/health").status_code == 200

        text = stream_during(child, url, then=refused)
        assert text.count('"text":"x"') == 100
        assert text.endswith("data: [DONE]\n\n")
        assert child.wait(20) == 0
        port = httpx.URL(url).port
        open_socket("127.0.0.1", port).close()


def test_a_stream_that_outlasts_the_grace_time_ends_with_an_error_event():
    """After the grace time the client is told, and the process ends with code 0."""
    with process(step_seconds=0.5, grace=0.2) as (child, url):
        text = stream_during(child, url, then=lambda: None)
        assert json.loads(text.split("data: ")[-1])["error"]["message"] == "shutting down"
        assert child.wait(20) == 0


def test_the_port_answers_while_the_model_loads():
    """Loading is healthy but not ready."""
    engine = FakeEngine()
    loaded = threading.Event()

    async def start() -> None:
        await asyncio.to_thread(loaded.wait, 20)
        engine.status = type(engine.status).READY

    engine.start = start
    bound = open_socket("127.0.0.1", 0)
    ready = threading.Event()
    config = ServerConfig(log_level="error")
    server = DrainingServer(create_app(engine, config), engine, config, on_ready=ready.set)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        with httpx.Client(base_url=url, timeout=20) as client:
            while not server.started:
                pass
            assert client.get("/health").json() == {"status": "loading"}
            assert client.get("/ready").json()["error"]["code"] == "loading"
            assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 503
            loaded.set()
            assert ready.wait(20)
            assert client.get("/ready").status_code == 200
    finally:
        loaded.set()
        server.end()
        thread.join(20)


def test_a_failed_start_raises_its_own_error():
    """Whoever started the server learns why, not that a server ended."""
    engine = FakeEngine()

    async def start() -> None:
        raise ConfigurationError("no such model")

    engine.start = start
    with pytest.raises(ConfigurationError, match="no such model"):
        serve(engine, ServerConfig(log_level="error"), open_socket("127.0.0.1", 0))


def test_a_taken_port_is_said_in_one_line():
    """The message names the address and what to change."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1:{port}: "):
            open_socket("127.0.0.1", port)


def test_an_idle_connection_is_kept_for_proxies():
    """The second request on a connection works long after uvicorn's own five seconds."""
    engine, config = FakeEngine(), ServerConfig()
    server = DrainingServer(create_app(engine, config), engine, config)
    assert server.config.timeout_keep_alive > 60


def test_every_answer_tells_its_own_time():
    """The Date header is that of the answer, with nothing that ticks, on malformed requests too."""
    with serving(FakeEngine()) as url:
        host, port = httpx.URL(url).host, httpx.URL(url).port
        first = httpx.get(f"{url}/health").headers["date"]
        time.sleep(1.1)
        second = httpx.get(f"{url}/health").headers["date"]
        with socket.create_connection((host, port)) as connection:
            connection.sendall(b"nonsense\r\n\r\n")
            refusal = connection.makefile("rb").read().decode()
    third = refusal.partition("\r\ndate: ")[2].partition("\r\n")[0]
    times = [parsedate_to_datetime(date) for date in (first, second, third)]
    assert times[0] < times[1] <= times[2]


def test_the_app_never_imports_torch():
    """The modules that speak HTTP start at once and run anywhere."""
    code = (
        "import sys, server.api.app, server.api.http_server, server.cli; "
        "print('torch' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert json.loads(ran.stdout.lower()) is False
