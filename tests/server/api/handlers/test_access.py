"""server.api.handlers.access: names, keys, other sites' pages and the access log, over a socket."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Iterator

import httpx
import openai
import pytest
from engines import load_engine
from fakes import FakeEngine
from openai import OpenAI
from serving import serving, wait_until

from server.api.handlers.access import OPEN_PATHS, access_logger, log_to_stdout
from server.engine.async_engine import AsyncEngine

COMPLETIONS = "/v1/completions"
KEY, OTHER = "sk-first", "sk-second-ü"
SECRET = "nobody may read this"
SITE = "https://chat.example.com"


@pytest.fixture(scope="module")
def closed() -> Iterator[str]:
    """A server with two keys."""
    with serving(FakeEngine(), api_key=f"{KEY}, {OTHER}") as url:
        yield url


@pytest.fixture
def client(closed: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=closed, timeout=20) as client:
        yield client


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture):
    """What the access log says, parsed."""
    caplog.set_level(logging.DEBUG, logger=access_logger.name)

    def read(path: str) -> list[dict]:
        records = [r for r in caplog.records if r.name == access_logger.name]
        assert all("\n" not in record.getMessage() for record in records)
        found = [json.loads(record.getMessage()) for record in records]
        return [line for line in found if line["path"] == path]

    return read


def waited(read, path: str) -> dict:
    """The only line for a path; it is written when the answer has left."""
    assert wait_until(lambda: read(path))
    (line,) = read(path)
    return line


def bearer(key: str) -> dict[bytes, bytes]:
    return {b"authorization": b"Bearer " + key.encode()}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("wrong"),
        {b"authorization": b"Bearer"},
        bearer(KEY[:-1]),
        bearer(KEY + "x"),
        {b"authorization": KEY.encode()},
        {b"authorization": b"Basic " + KEY.encode()},
        {b"api-key": b"wrong"},
        {b"x-api-key": b"\xff\xfe"},
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("GET", "/metrics"),
        ("GET", "/kv"),
        ("GET", "/requests"),
        ("GET", "/nowhere"),
        ("GET", "/health/"),
        ("GET", "/openapi.json"),
        ("POST", COMPLETIONS),
        ("POST", "/"),
        ("OPTIONS", "/v1/models"),
    ],
)
def test_without_a_key_nothing_is_served(client, headers, method, path):
    """No key, a wrong one or half of one is 401 in the error shape, whatever was asked."""
    answer = client.request(method, path, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["www-authenticate"] == "Bearer"
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == "invalid_api_key"
    assert KEY not in answer.text


@pytest.mark.parametrize("key", [KEY, OTHER])
@pytest.mark.parametrize(
    "headers",
    [
        bearer,
        lambda key: {b"authorization": b"bearer  " + key.encode()},
        lambda key: {b"api-key": key.encode()},
        lambda key: {b"x-api-key": key.encode()},
        lambda key: {b"x-api-key": key.encode(), b"authorization": b"Bearer unused"},
    ],
)
def test_any_key_opens_in_any_of_three_headers(client, key, headers):
    """Bearer, api-key and x-api-key are the same, and so are several keys."""
    answer = client.get("/v1/models", headers=headers(key))
    assert answer.status_code == 200
    (model,) = answer.json()["data"]
    assert model.items() >= {"id": "fake", "object": "model", "owned_by": "kvserve"}.items()
    assert isinstance(model["created"], int)
    assert model["max_model_len"] > 0


@pytest.mark.parametrize("path", [*sorted(OPEN_PATHS), "/"])
def test_probes_and_the_page_need_no_key(client, path):
    """An orchestrator has none, and the page asks for it."""
    assert client.get(path).status_code == 200


@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/chat/completions", "/v1/models", "/nowhere"])
def test_a_preflight_needs_no_key(client, path):
    """A browser asks first, without a key, whether a page of another site may call."""
    answer = client.options(
        path,
        headers={
            "origin": SITE,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type,x-stainless-os",
        },
    )
    assert answer.status_code in (200, 204)
    assert answer.headers["access-control-allow-origin"] in ("*", SITE)
    assert "POST" in answer.headers["access-control-allow-methods"]
    allowed = answer.headers["access-control-allow-headers"].lower()
    assert all(name in allowed for name in ("authorization", "content-type", "x-stainless-os"))


def test_other_sites_may_read_answers_and_refusals(client):
    """The 401 and the answer carry CORS headers, and those of ours that pages may read."""
    for headers, status in (({}, 401), (bearer(KEY), 200)):
        answer = client.get("/v1/models", headers={b"origin": SITE.encode(), **headers})
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] in ("*", SITE)
        exposed = answer.headers["access-control-expose-headers"].lower()
        assert "x-request-id" in exposed
        assert "retry-after" in exposed


def test_only_named_sites_may_call():
    """With a list of sites, the pages of others get no permission."""
    with serving(FakeEngine(), cors_origins=f"{SITE}, http://localhost:3000") as url:
        for site, allowed in ((SITE, SITE), ("https://evil.example.com", None)):
            answer = httpx.get(f"{url}/v1/models", headers={"origin": site})
            assert answer.headers.get("access-control-allow-origin") == allowed


def test_the_openai_client_with_the_right_and_a_wrong_key(closed):
    """The right key works, and a wrong one is the client's own exception for it."""
    with OpenAI(base_url=f"{closed}/v1", api_key=KEY, max_retries=0) as right:
        assert right.models.list().data
        answer = right.completions.create(model="fake", prompt="a", max_tokens=3)
        assert answer.choices[0].text == "Hel"
    with (
        OpenAI(base_url=f"{closed}/v1", api_key="wrong", max_retries=0) as wrong,
        pytest.raises(openai.AuthenticationError) as error,
    ):
        wrong.completions.create(model="fake", prompt="a")
    assert error.value.code == "invalid_api_key"


@pytest.mark.slow
def test_an_idle_connection_outlives_a_common_timeout(closed):
    """The second request on one connection, eight seconds after the first, is answered."""
    host, port = httpx.URL(closed).host, httpx.URL(closed).port
    request = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.create_connection((host, port), timeout=10) as connection:
        for pause in (8, 0):
            connection.sendall(request)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
            time.sleep(pause)


@pytest.mark.parametrize("given", ["abc-123", "0b0c1d54-11d4-4f3b-9a4e-1f6e6f4b9d11", "a" * 128])
def test_the_clients_request_id_comes_back_and_names_the_call(given):
    """It stands in the header and in the answer's id, which stays unique."""
    with serving(FakeEngine()) as url, httpx.Client(base_url=url) as client:
        ids = set()
        for _ in range(3):
            body = {"prompt": "a", "max_tokens": 1}
            answer = client.post(COMPLETIONS, json=body, headers={"x-request-id": given})
            assert answer.headers["x-request-id"] == given
            assert answer.json()["id"].startswith(f"cmpl-{given}-")
            ids.add(answer.json()["id"])
        assert len(ids) == 3


@pytest.mark.parametrize("given", [None, "", "a b", "a" * 129, "{}", "../x", "ü"])
def test_what_cannot_be_an_id_is_replaced(given):
    """Without a usable one the server makes its own, and errors carry one as well."""
    headers = [] if given is None else [("x-request-id", given.encode())]
    with serving(FakeEngine()) as url, httpx.Client(base_url=url) as client:
        for path, status in (("/health", 200), ("/nowhere", 404)):
            answer = client.get(path, headers=headers)
            assert answer.status_code == status
            assert len(answer.headers["x-request-id"]) == 32


def test_a_timeline_is_found_by_the_clients_request_id(checkpoint):
    """What a client called its request is what it can ask for afterwards."""
    loaded = load_engine(checkpoint("rand-llama-tied"))
    with serving(AsyncEngine(lambda: loaded)) as url, httpx.Client(base_url=url) as client:
        body = {"prompt": [[1, 2, 3]], "max_tokens": 2, "n": 2}
        answer = client.post(COMPLETIONS, json=body, headers={"x-request-id": "mine-7"})
        for name in ("mine-7", answer.json()["id"]):
            found = client.get(f"/requests/{name}/timeline").json()["data"]
            assert len(found) == 2
        assert client.get("/requests/mine/timeline").status_code == 404


def test_a_line_of_the_access_log_says_what_happened_and_not_what_was_said(lines):
    """One JSON object with ids, times and counts; no text, no query and no key."""
    with serving(FakeEngine(SECRET), api_key=KEY) as url:
        answer = httpx.post(
            f"{url}{COMPLETIONS}?note={SECRET}",
            json={"prompt": SECRET, "n": 2},
            headers=bearer(KEY) | {b"x-request-id": b"mine"},
        )
        line = waited(lines, COMPLETIONS)
    assert line["request_id"] == "mine"
    assert (line["method"], line["status"], line["complete"]) == ("POST", 200, True)
    assert line["bytes"] == len(answer.content)
    assert line["seconds"] > 0
    usage = answer.json()["usage"]
    assert line["prompt_tokens"] == usage["prompt_tokens"]
    assert line["completion_tokens"] == usage["completion_tokens"]
    assert line["finish_reasons"] == ["length"]
    text = json.dumps(line)
    assert SECRET not in text
    assert KEY not in text


def test_a_client_that_leaves_is_seen_in_the_log(lines):
    """An answer that was not read to its end says so."""
    engine = FakeEngine("x" * 200)
    engine.step_seconds = 0.02
    with serving(engine) as url:
        body = {"prompt": "a", "stream": True, "max_tokens": 150}
        with httpx.stream("POST", f"{url}{COMPLETIONS}", json=body) as response:
            next(response.iter_lines())
        line = waited(lines, COMPLETIONS)
    assert line["status"] == 200
    assert line["complete"] is False


def test_probes_are_logged_at_level_debug_only(caplog):
    """A probe each second would drown what matters; one that fails is told."""
    caplog.set_level(logging.DEBUG, logger=access_logger.name)
    engine = FakeEngine()
    with serving(engine) as url:
        httpx.get(f"{url}/health")
        engine.status = type(engine.status).DEAD
        httpx.get(f"{url}/health")
        assert wait_until(lambda: len(caplog.records) == 2)
    assert [record.levelname for record in caplog.records] == ["DEBUG", "INFO"]


@pytest.mark.parametrize("with_probes", [False, True])
def test_standard_output_holds_nothing_but_lines(capsys, monkeypatch, with_probes):
    """A pipe into a program that reads JSON needs no filter."""
    monkeypatch.setattr(access_logger, "handlers", [])
    monkeypatch.setattr(access_logger, "propagate", True)
    try:
        log_to_stdout(with_probes=with_probes)
        with serving(FakeEngine()) as url:
            httpx.get(f"{url}/health")
            httpx.get(f"{url}/v1/models")
    finally:
        access_logger.setLevel(logging.NOTSET)
    paths = [json.loads(line)["path"] for line in capsys.readouterr().out.splitlines()]
    assert paths == ["/health", "/v1/models"][not with_probes :]


def test_the_access_log_can_be_switched_off(lines):
    """With the option off there is none."""
    with serving(FakeEngine(), access_log=False) as url:
        httpx.get(f"{url}/v1/models")
        httpx.get(f"{url}/v1/models")
    assert lines("/v1/models") == []


def test_a_fault_of_ours_has_the_error_shape_and_an_id(lines):
    """The answer is 500 with the id under which the log has the traceback."""
    engine = FakeEngine()
    engine.tokenizer.encode = None  # calling it fails in a way nobody foresaw
    with serving(engine) as url:
        answer = httpx.post(f"{url}{COMPLETIONS}", json={"prompt": "a"})
        line = waited(lines, COMPLETIONS)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert line["request_id"] == answer.headers["x-request-id"]
    assert line["status"] == 500


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_takes_too_long_is_ended(stream):
    """After the limit the client is told, does not retry by itself, and the engine is free."""
    engine = FakeEngine("x" * 100)
    engine.step_seconds = 0.1
    with serving(engine, request_timeout=0.35) as url:
        body = {"prompt": "a", "stream": stream, "max_tokens": 90}
        answer = httpx.post(f"{url}{COMPLETIONS}", json=body)
        if stream:
            error = json.loads(answer.text.split("data: ")[-1])["error"]
        else:
            assert answer.status_code == 504
            assert answer.headers["x-should-retry"] == "false"
            error = answer.json()["error"]
        assert error["code"] == "request_timeout"
        assert "0.35 seconds" in error["message"]
        assert wait_until(lambda: not engine.open)


NUMBERS = [
    {"n": 1_000_000},
    {"best_of": 1_000_000},
    {"logprobs": 100_000},
    {"logprobs": -1},
    {"prompt_logprobs": 100_000},
    {"prompt": [[65]] * 100_000},
    {"prompt": ["a"] * 100_000},
    {"stop": ["x"] * 100_000},
    {"stop": "x" * 1_000_000},
    {"stop_token_ids": [1] * 100_000},
    {"bad_words": ["x"] * 100_000},
    {"bad_words": ["x" * 1_000_000]},
    {"allowed_token_ids": [1] * 100_000},
    {"logit_bias": {str(i): 1 for i in range(100_000)}},
    {"cache_salt": "x" * 100_000},
    {"truncate_prompt_tokens": 0},
    {"min_tokens": 10**30},
    {"seed": 10**30},
]
CHAT_NUMBERS = [
    {"top_logprobs": 5000, "logprobs": True},
    {"messages": [{"role": "user", "content": "a"}] * 40_000},
    {"chat_template_kwargs": {f"k{i}": i for i in range(100_000)}},
    {"tools": [{"type": "function", "function": {"name": "f"}}] * 40_000},
]


@pytest.mark.parametrize(
    ("path", "body"),
    [(COMPLETIONS, body) for body in NUMBERS]
    + [("/v1/chat/completions", body) for body in CHAT_NUMBERS],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_everything_a_client_can_make_large_has_a_limit(closed, path, body):
    """400 naming the field and the bound, before the engine hears of it."""
    base = {"prompt": "a"} if path == COMPLETIONS else {"messages": [{"role": "user"}]}
    with httpx.Client(base_url=closed, headers=bearer(KEY), timeout=20) as client:
        answer = client.post(path, json=base | body)
        assert answer.status_code == 400, answer.text[:300]
        error = answer.json()["error"]
        field = next(iter(body))
        assert field in error["message"]
        assert error["param"].startswith(field)
        assert len(answer.content) < 1000
        ping = client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 1})
        assert ping.status_code == 200
