"""Comparisons and attention maps over HTTP, on a real engine behind a real socket."""

import json
import time

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
