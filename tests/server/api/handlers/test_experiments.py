"""Comparisons and attention maps over HTTP, on a real engine behind a real socket."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import pytest
from engines import load_engine
from serving import serving, wait_until

from server.api.handlers.experiments import MAX_PROMPT_TOKENS
from server.engine.async_engine import AsyncEngine

PROMPT = "the cache holds what was seen"


@pytest.fixture(scope="module")
def loaded(checkpoint):
    """An engine over a small random model with local and global layers."""
    return load_engine(checkpoint("rand-gemma3"))


@pytest.fixture(scope="module")
def client(loaded):
    """A client of a server with that engine."""
    with serving(AsyncEngine(lambda: loaded)) as url, httpx.Client(base_url=url) as client:
        yield client


def error(response: httpx.Response) -> dict[str, object]:
    assert response.status_code == 400, response.text
    return response.json()["error"]


def test_comparison_streams_both_runs_and_sums_up(client):
    """Each step of both runs is an event of its own, and the last event tells the whole."""
    body = {"prompt": PROMPT, "max_tokens": 6, "stream": True}
    with client.stream("POST", "/v1/compare", json=body) as response:
        assert response.status_code == 200
        data = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    *steps, whole = map(json.loads, data[:-1])
    assert data[-1] == "[DONE]"
    assert [step["object"] for step in steps] == ["compare.step"] * 12
    assert [step["use_cache"] for step in steps] == [True] * 6 + [False] * 6
    first = steps[0]["length"]
    assert [step["length"] for step in steps] == [*range(first, first + 6)] * 2
    tokens = [step["token_id"] for step in steps]
    assert tokens[:6] == tokens[6:]
    assert whole["object"] == "compare"
    assert whole["equal"] is True
    assert whole["rows"][-1]["length"] == first + 5
    assert not whole["rows"][-1]["uncached"]["total_is_estimate"]


def test_comparison_chooses_what_everybody_is_given(client, loaded):
    """The tokens compared are those of an ordinary greedy request."""
    body = {"prompt": PROMPT, "max_tokens": 5, "stream": True}
    lines = client.post("/v1/compare", json=body).text.splitlines()
    steps = [json.loads(line[6:]) for line in lines if '"compare.step"' in line]
    token_ids = loaded.tokenizer.encode(PROMPT)
    answer = client.post(
        "/v1/completions",
        json={
            "prompt": token_ids,
            "max_tokens": 5,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        },
    ).json()
    assert [step["token_id"] for step in steps[:5]] == answer["choices"][0]["token_ids"]


def test_comparison_without_stream_is_one_answer(client):
    """The same as one JSON object, with the work that the configuration implies."""
    answer = client.post("/v1/compare", json={"prompt": PROMPT, "max_tokens": 4}).json()
    assert answer["object"] == "compare"
    last = answer["rows"][-1]
    assert last["uncached"]["step_flops"] > 10 * last["cached"]["step_flops"]
    assert last["cache_bytes"] > 0
    assert len(answer["steps"]["cached"]["ms"]) == 4


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/compare", {"prompt": "a", "max_tokens": 129}, "max_tokens"),
        ("/v1/compare", {"prompt": ""}, "prompt"),
        ("/v1/compare", {"prompt": "a" * (MAX_PROMPT_TOKENS + 1)}, "prompt"),
        ("/v1/compare", {"prompt": "a", "temperature": 1}, "temperature"),
        ("/v1/attention", {"prompt": "a" * (MAX_PROMPT_TOKENS + 1)}, "prompt"),
        ("/v1/attention", {"prompt": "a", "layer": 6}, "layer"),
        ("/v1/attention", {"prompt": "a", "head": 4}, "head"),
        ("/v1/attention", {"prompt": "a", "head": -1}, "head"),
    ],
)
def test_bounds_are_kept(client, path, body, param):
    """What is too large, unknown or not there is refused by name."""
    assert error(client.post(path, json=body))["param"] == param


def test_another_model_is_not_served(client):
    """A model of another name is a 404, as everywhere."""
    response = client.post("/v1/attention", json={"prompt": "a", "model": "other"})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


def test_attention_rows_are_distributions(client):
    """Each row has the weights of the tokens up to its own, and they sum to 1."""
    answer = client.post("/v1/attention", json={"prompt": PROMPT, "layer": 0, "head": 1}).json()
    assert "".join(answer["tokens"]).endswith(PROMPT)
    assert len(answer["weights"]) == len(answer["token_ids"]) == len(answer["tokens"])
    for position, row in enumerate(answer["weights"]):
        assert len(row) == position + 1
        assert sum(row) == pytest.approx(1.0, abs=1e-3)
    assert answer["window"] == 16
    assert (answer["num_layers"], answer["num_heads"]) == (6, 4)


def test_attention_without_a_choice_is_the_mean(client):
    """No layer and no head mean the average of all."""
    answer = client.post("/v1/attention", json={"prompt": "abc"}).json()
    assert answer["layer"] is None
    assert answer["window"] is None
    assert sum(answer["weights"][-1]) == pytest.approx(1.0, abs=1e-3)


def test_comparisons_run_one_at_a_time(client, loaded, monkeypatch):
    """A second comparison is told to come back, and the place is free once the first has gone."""
    step = loaded.engine.step

    def slow_step():
        time.sleep(0.02)
        return step()

    monkeypatch.setattr(loaded.engine, "step", slow_step)
    body = {"prompt": PROMPT, "max_tokens": 128, "stream": True}
    with client.stream("POST", "/v1/compare", json=body) as first:
        lines = first.iter_lines()  # kept: a forgotten iterator ends its stream
        next(lines)
        second = client.post("/v1/compare", json=body)
        assert second.status_code == 429
        assert int(second.headers["Retry-After"]) >= 1
    short = {"prompt": "a", "max_tokens": 2}
    assert wait_until(lambda: client.post("/v1/compare", json=short).status_code == 200)


def test_attention_is_recorded_between_the_steps_of_others(loaded):
    """A stream that runs meanwhile goes on: no two pieces of a recording without a step."""
    engine, order = loaded.engine, []
    step, begin = engine.step, engine.begin_recording

    def watched_step():
        order.append("step")
        time.sleep(0.005)
        return step()

    def watched_begin(*args, **kwargs):
        recording = begin(*args, **kwargs)
        advance = recording.advance

        def watched_advance() -> bool:
            order.append("piece")
            return advance()

        recording.advance = watched_advance
        return recording

    engine.step, engine.begin_recording = watched_step, watched_begin
    try:
        with serving(AsyncEngine(lambda: loaded)) as url:
            body = {"prompt": "a", "max_tokens": 120, "ignore_eos": True, "stream": True}
            with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as stream:
                lines = stream.iter_lines()
                next(lines)
                text = "the cache " * 20
                answer = httpx.post(f"{url}/v1/attention", json={"prompt": text}, timeout=60)
                assert answer.status_code == 200
                assert list(lines)[-2] == "data: [DONE]"
    finally:
        engine.step, engine.begin_recording = step, begin
    begun, ended = order.index("piece"), max(i for i, what in enumerate(order) if what == "piece")
    last_step = max(i for i, what in enumerate(order) if what == "step")
    between = order[begun : min(ended, last_step)]
    assert between.count("piece") > 10
    assert "piece piece piece" not in " ".join(between)


def test_one_recording_runs_at_a_time_and_ends_with_its_client(loaded):
    """Others are refused with 429, and a client that leaves frees the place."""
    engine, free, num_pieces = loaded.engine, threading.Event(), 0
    begin = engine.begin_recording

    def endless(*args, **kwargs):
        recording = begin(*args, **kwargs)

        def advance() -> bool:
            nonlocal num_pieces
            num_pieces += 1
            time.sleep(0.005)
            return not free.is_set()

        recording.advance = advance
        return recording

    engine.begin_recording = endless
    try:
        with serving(AsyncEngine(lambda: loaded)) as url:
            with ThreadPoolExecutor(1) as pool:
                ask = partial(httpx.post, f"{url}/v1/attention", json={"prompt": PROMPT})
                first = pool.submit(ask, timeout=1)
                assert wait_until(lambda: num_pieces > 0)
                refused = ask(timeout=5)
                assert isinstance(first.exception(), httpx.ReadTimeout)
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            body = {"prompt": "a", "max_tokens": 1}
            assert httpx.post(f"{url}/v1/completions", json=body).status_code == 200
            before = num_pieces
            time.sleep(0.1)
            assert num_pieces <= before + 1, "it goes on for nobody"
            free.set()
            answer = httpx.post(f"{url}/v1/attention", json={"prompt": PROMPT})
            assert answer.status_code == 200
    finally:
        engine.begin_recording = begin
