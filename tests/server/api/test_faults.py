"""Faults injected beneath a running server, seen by clients over a socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
import torch
from engines import load_engine
from serving import serving, wait_until

from server.engine.async_engine import AsyncEngine
from server.engine.loaded_engine import LoadedEngine

DOOMED_SEED = 666
GOOD = {"prompt": "steady", "max_tokens": 60, "temperature": 0, "ignore_eos": True, "stream": True}


@pytest.fixture
def loaded(checkpoint) -> LoadedEngine:
    return load_engine(checkpoint("rand-llama-tied"))


@contextmanager
def connected(loaded: LoadedEngine) -> Iterator[httpx.Client]:
    with (
        serving(AsyncEngine(lambda: loaded)) as url,
        httpx.Client(base_url=url, timeout=120) as client,
    ):
        yield client


def events(client: httpx.Client, body: dict) -> list[str]:
    """The data of every event of a completions stream."""
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return [part.removeprefix("data: ") for part in answer.text.split("\n\n") if part]


def text(stream: list[str]) -> str:
    """What a stream that ended well says."""
    assert stream[-1] == "[DONE]"
    return "".join(json.loads(part)["choices"][0]["text"] for part in stream[:-1])


def test_a_fault_in_one_requests_sampling_ends_only_its_stream(loaded, monkeypatch):
    """The stream whose logits go bad ends with an error event; its neighbours say all they would.

    Whoever comes later is served, and nothing of the broken request stays in the cache.
    """
    sampler = loaded.engine._sampler
    sample = sampler.sample

    def spoiled(logits, requests, **options):
        bad = [
            request.params.seed == DOOMED_SEED and request.num_output_tokens >= 5
            for request in requests
        ]
        return sample(
            logits.masked_fill(torch.tensor(bad)[:, None], torch.nan), requests, **options
        )

    monkeypatch.setattr(sampler, "sample", spoiled)
    with connected(loaded) as client, ThreadPoolExecutor(4) as pool:
        undisturbed = text(events(client, GOOD))
        good = [pool.submit(events, client, GOOD) for _ in range(3)]
        doomed = events(client, GOOD | {"seed": DOOMED_SEED})
        error = json.loads(doomed[-1])["error"]
        assert 1 < len(doomed) < 10
        assert "finite" in error["message"]
        assert error["type"] == "server_error"
        assert [text(stream.result()) for stream in good] == [undisturbed] * 3
        assert text(events(client, GOOD)) == undisturbed
        assert client.get("/health").status_code == 200
    loaded.engine.scheduler.manager.check_integrity()
    assert loaded.engine.scheduler.manager.usage == 0


def test_a_fault_in_the_engine_ends_all_and_turns_health_red(loaded, monkeypatch):
    """Every open stream ends with the same named error, and so does whoever asks later."""
    runner = loaded.engine._runner
    submit, num_steps = runner.submit, 0

    def failing(batch):
        nonlocal num_steps
        num_steps += len(batch.scheduled) == 4  # every stream has begun
        return submit(batch) if num_steps < 30 else 1 / 0

    with connected(loaded) as client, ThreadPoolExecutor(4) as pool:
        monkeypatch.setattr(runner, "submit", failing)
        body = GOOD | {"max_tokens": 400}
        streams = [pool.submit(events, client, body) for _ in range(4)]
        errors = {json.loads(stream.result()[-1])["error"]["message"] for stream in streams}
        assert errors == {"The engine failed: ZeroDivisionError: division by zero"}
        assert wait_until(lambda: client.get("/health").status_code == 503)
        for answer in (
            client.get("/health"),
            client.get("/ready"),
            client.post("/v1/completions", json=GOOD),
        ):
            assert answer.status_code == 503
            assert "ZeroDivisionError" in answer.json()["error"]["message"]
