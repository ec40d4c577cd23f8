"""Faults that other servers had at their border: numbers, bodies, methods and files of any kind."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from checkpoints import Tensors, rewrite_tensors
from engines import load_engine
from serving import serving

from server.engine.async_engine import AsyncEngine

QUESTION = [{"role": "user", "content": "x"}]
BODIES = {
    "/v1/completions": {"prompt": "A", "max_tokens": 1},
    "/v1/chat/completions": {"messages": QUESTION, "max_tokens": 1},
    "/v1/chat/completions/input_tokens": {"messages": QUESTION},
    "/v1/responses": {"input": "x", "max_output_tokens": 1},
    "/v1/responses/input_tokens": {"input": "x"},
    "/v1/messages": {"model": "script-gpt2", "messages": QUESTION, "max_tokens": 1},
    "/v1/messages/count_tokens": {"model": "script-gpt2", "messages": QUESTION},
    "/v1/compare": {"prompt": "A"},
    "/v1/attention": {"prompt": "A"},
    "/tokenize": {"prompt": "A"},
    "/detokenize": {"tokens": [65]},
}
"""A good request for every route that takes one."""
NUMBERS = [
    "temperature",
    "top_p",
    "min_p",
    "top_k",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "n",
    "seed",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "min_tokens",
    "priority",
    "truncate_prompt_tokens",
    "best_of",
    "layer",
    "head",
]
NO_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", '"nan"', '"Infinity"', "[]", "{}")


@pytest.fixture(scope="module")
def client(checkpoint) -> Iterator[httpx.Client]:
    loaded = load_engine(checkpoint("script-gpt2"))
    with serving(AsyncEngine(lambda: loaded)) as url, httpx.Client(base_url=url) as client:
        client.timeout = 60
        yield client


def refused(answer: httpx.Response, *statuses: int) -> dict:
    """The error, which must have its one shape, or Anthropic's where that client reads it."""
    assert answer.status_code in statuses, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = json.loads(answer.text, parse_constant=pytest.fail)
    error = body["error"]
    if not answer.request.url.path.startswith("/v1/messages"):
        assert body.keys() == {"error"}
        assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    assert "Traceback" not in error["message"]
    return error


def ping(client: httpx.Client) -> None:
    body = {"prompt": "A", "max_tokens": 3, "temperature": 0}
    assert client.post("/v1/completions", json=body).json()["choices"][0]["text"] == "Owl"


def test_every_route_that_takes_a_body_is_tried(client):
    """A route added later must be added here, too."""
    paths = client.get("/openapi.json").json()["paths"]
    assert {path for path, methods in paths.items() if "post" in methods} == BODIES.keys()
    for path, body in BODIES.items():
        assert client.post(path, json=body).status_code == 200


@pytest.mark.parametrize("path", BODIES)
def test_what_is_no_number_is_refused_everywhere(client, path):
    """NaN, infinities and texts, for each numeric field of any endpoint."""
    for name in NUMBERS:
        body = {key: value for key, value in BODIES[path].items() if key != name}
        for number in NO_NUMBERS:
            raw = json.dumps(body)[:-1] + f', "{name}": {number}}}'
            refused(client.post(path, content=raw), 400)
    raw = json.dumps(BODIES[path])[:-1] + ', "logit_bias": {"65": NaN}}'
    refused(client.post(path, content=raw), 400)
    ping(client)


@pytest.mark.parametrize("path", BODIES)
def test_every_route_refuses_what_it_cannot_read(client, path):
    """Broken JSON, wrong types, missing fields, other methods, unknown models, huge bodies."""
    for raw in (b"{", b"", b"[]", b"null", b'"a"', b"\xff\xfe", b"{}", b"{'a': 1}", b"{}{}"):
        refused(client.post(path, content=raw), 400)
    refused(client.post(path, content=b'{"a":' * 10_000), 400)
    refused(client.post(path, json=BODIES[path] | {"temprature": 1}), 400)
    if path not in ("/v1/compare", "/v1/attention"):  # which know no other model
        refused(client.post(path, json=BODIES[path] | {"model": "nope"}), 404)
    for method in ("GET", "PUT", "DELETE", "PATCH"):
        refused(client.request(method, path), 405, 404)
    pieces = (b"a" * 1_000_000 for _ in range(9))
    refused(client.post(path, content=pieces), 413)
    refused(client.post(path, content=b"a" * 9_000_000), 413)


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/metrics", "/kv", "/requests"])
def test_routes_that_are_only_read_refuse_the_rest(client, path):
    """With the error shape, as any other route."""
    assert client.get(path).status_code == 200
    for method in ("POST", "PUT", "DELETE"):
        refused(client.request(method, path), 405)


def test_a_limit_of_zero_is_named_as_it_was_sent(client):
    """Of the two names of one limit the client reads its own."""
    for name in ("max_tokens", "max_completion_tokens"):
        answer = client.post("/v1/chat/completions", json={"messages": QUESTION, name: 0})
        assert refused(answer, 400)["param"] == name


ODD_VALUES = [
    {"stop": ""},
    {"stop": [""]},
    {"stop": ["", "done"]},
    {"stop": [1]},
    {"stop": [None]},
    {"stop": 5},
    {"stop": {}},
    {"stop": ["x"] * 300},
    {"logit_bias": {"264": 5}},
    {"logit_bias": {"-1": 5}},
    {"logit_bias": {"abc": 1}},
    {"logit_bias": {"065": 1}},
    {"logit_bias": {"9" * 400: 1}},
    {"logit_bias": {"65": 101}},
    {"logit_bias": {"65": "x"}},
    {"logit_bias": {"65": None}},
    {"logit_bias": [65]},
]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("odd", ODD_VALUES, ids=str)
def test_odd_stops_and_biases_are_refused(client, path, odd):
    """One policy on both endpoints: 400 that names the field, and no empty answer."""
    name = next(iter(odd))
    answer = client.post(path, json=BODIES[path] | odd)
    assert refused(answer, 400)["param"].startswith(name)
    ping(client)


@pytest.mark.parametrize("stream", [True, False])
def test_logits_that_are_not_finite_are_an_error(checkpoint_copy, stream):
    """One row of the embeddings is infinite: who uses it is told, and nobody else notices."""
    folder = checkpoint_copy("rand-llama-untied")

    def spoil(tensors: Tensors) -> Tensors:
        tensors["model.embed_tokens.weight"][65] = float("inf")
        return tensors

    rewrite_tensors(folder, spoil)
    loaded = load_engine(folder)
    with serving(AsyncEngine(lambda: loaded)) as url, httpx.Client(base_url=url) as client:
        sound = {"prompt": "BCD", "temperature": 0}
        before = client.post("/v1/completions", json=sound).json()["choices"]
        body = {"prompt": "BAD", "temperature": 0, "stream": stream}
        error = refused(client.post("/v1/completions", json=body), 500)
        assert "finite" in error["message"]
        assert client.post("/v1/completions", json=sound).json()["choices"] == before


def cut(folder: Path) -> None:
    """Leave half of the tensors."""
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def overstate(folder: Path) -> None:
    """Announce a header of 2^60 bytes."""
    file = folder / "model.safetensors"
    file.write_bytes(struct.pack("<Q", 2**60) + file.read_bytes()[8:])


def scramble(folder: Path) -> None:
    """Leave a configuration that is no JSON."""
    (folder / "config.json").write_text("{")


@pytest.mark.slow
@pytest.mark.parametrize("damage", [cut, overstate, scramble], ids=lambda damage: damage.__name__)
def test_a_broken_model_ends_the_start_with_one_line(checkpoint, tmp_path, damage):
    """The command says in one line what is wrong, and its exit code is 1."""
    folder = Path(shutil.copytree(checkpoint("rand-llama-tied"), tmp_path / "model"))
    damage(folder)
    options = ["serve", "--model", str(folder), "--port", "0", "--log-level", "error"]
    command = [sys.executable, "-c", "from server.cli import main; main()", *options]
    root = Path(__file__).parents[3]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    assert ended.returncode == 1
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    assert len(lines) == 1
    assert lines[0].startswith("kvserve: ")
