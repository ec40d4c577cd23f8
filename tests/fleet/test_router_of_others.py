"""sglang-router in front of two servers: what they answer alone is what clients get through it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
from fleet_process import free_port
from server_process import server_process
from serving import wait_until
from stream_events import StreamedCall

pytest.importorskip("sglang_router", reason="needs the package sglang-router")
pytestmark = [pytest.mark.fleet, pytest.mark.slow]
MODEL = "rand-llama-tied"
TEXT = {"model": MODEL, "prompt": "Once upon", "max_tokens": 30, "temperature": 0, "seed": 0}
CHAT = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 9,
    "seed": 1,
}


@pytest.fixture(scope="module")
def urls(checkpoint) -> Iterator[tuple[str, str]]:
    """Where the router is, and one of the two servers behind it."""
    port, metrics = free_port(), free_port()
    memory = {"kv_cache_memory": "64MiB"}
    with (
        server_process(checkpoint(MODEL), **memory) as one,
        server_process(checkpoint(MODEL), **memory) as other,
    ):
        command = [sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1",
                   "--port", str(port), "--prometheus-port", str(metrics),
                   "--policy", "cache_aware", "--worker-urls", one.url, other.url]  # fmt: skip
        router = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{port}"
            assert wait_until(lambda: answers(f"{url}/v1/completions"), 60)
            yield url, one.url
        finally:
            router.terminate()
            router.wait(30)


def answers(url: str) -> bool:
    try:
        return httpx.post(url, json=TEXT, timeout=30).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)]
)
def test_streams_are_those_of_a_server(urls, path, body):
    """Event by event, with nothing lost on the way."""
    through, alone = (StreamedCall(url, body, path).join() for url in urls)
    assert through.content == alone.content
    assert through.finished
    assert len(through.events) > 5


def test_a_known_beginning_goes_where_it_is(urls):
    """The router sends a prompt that grows to the server whose cache has its beginning."""
    prompt = "word " * 60
    for tail in ("", "more", "and more"):
        answer = httpx.post(
            f"{urls[0]}/v1/completions", json=TEXT | {"prompt": prompt + tail}, timeout=60
        )
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] >= 288
