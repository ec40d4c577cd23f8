"""server.api.app: the policies, over a real socket with raw HTTP."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from fakes import MAX_MODEL_LEN, VOCAB_SIZE, FakeEngine
from serving import serving, wait_until

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def client(engine: FakeEngine) -> Iterator[httpx.Client]:
    with serving(engine) as url, httpx.Client(base_url=url, timeout=20) as client:
        yield client


@pytest.fixture
def own() -> Iterator[tuple[FakeEngine, httpx.Client]]:
    """An engine that a test may upset, with its server."""
    engine = FakeEngine()
    with serving(engine, keep_alive_interval=0.05, max_num_seqs=1, max_queue=4) as url:
        limits = httpx.Limits(max_connections=100)
        with httpx.Client(base_url=url, timeout=20, limits=limits) as client:
            yield engine, client


def refused(response: httpx.Response, status: int) -> dict:
    """The error of a response that must have the one shape."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert "content-encoding" not in response.headers
    body = json.loads(response.text, parse_constant=pytest.fail)
    assert body.keys() == {"error"}
    error = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    assert "Traceback" not in error["message"]
    assert error["code"] is None or isinstance(error["code"], str)
    return error


def events(response: httpx.Response) -> list[dict]:
    """The chunks of a stream that ended well."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    data = [part[6:] for part in response.text.split("\n\n") if part.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(part) for part in data[:-1]]


def ping(client: httpx.Client) -> None:
    """The server still answers as it did."""
    body = client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 1, "temperature": 0}).json()
    assert body["choices"][0]["text"] == "H"


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (b"{", "JSON"),
        (b"", "JSON"),
        (b"[]", "object"),
        (b'"x"', "object"),
        (b'{"temperature": NaN}', "NaN"),
        (b'{"top_p": Infinity}', "Infinity"),
        (b'{"min_p": -Infinity}', "-Infinity"),
        (b'{"presence_penalty": 1e999}', "1e999"),
        (b'{"logit_bias": {"65": NaN}}', "NaN"),
        (b'{"n": 1, "n": 2}', "twice"),
    ],
)
def test_a_body_that_is_not_strict_json_is_400(client, path, raw, word):
    """Broken bodies get the one error shape on both endpoints."""
    error = refused(client.post(path, content=raw), 400)
    assert word in error["message"]
    ping(client)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("POST", "/v1/chat/completion", 404),
        ("GET", CHAT, 405),
        ("POST", "/v1/models", 405),
        ("GET", "/v1/models/other", 404),
    ],
)
def test_wrong_paths_methods_and_models_have_the_error_shape(client, method, path, status):
    """No answer of the framework's own reaches a client."""
    refused(client.request(method, path), status)


def test_a_wrong_method_names_the_right_one(client):
    """The Allow header says which method works."""
    assert client.get(COMPLETIONS).headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 200), ("/health", 200), ("/ready", 200), ("/version", 200), ("/v1/models", 200),
        ("/v1/models/fake", 200), ("/v1/models/other", 404), ("/metrics", 200), ("/kv", 200),
        ("/kv/stream", 200), ("/requests", 200), ("/requests/x/timeline", 404),
        ("/static/style.css", 200), ("/tokenizer_info", 200), ("/openapi.json", 200),
        (COMPLETIONS, 405), ("/nope", 404),
    ],
)  # fmt: skip
def test_whatever_can_be_read_answers_head_without_a_body(client, path, status):
    """Status and type are those of the whole answer, and the connection stays usable."""
    head = client.head(path)
    assert (head.status_code, head.content) == (status, b"")
    if path != "/kv/stream":
        whole = client.get(path)
        assert head.headers["content-type"] == whole.headers["content-type"]
    else:
        assert head.headers["content-type"].startswith("text/event-stream")
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "param", "code"),
    [
        (CHAT, {**HI, "model": "other"}, "model", "model_not_found"),
        (CHAT, {}, "messages", "missing_required_parameter"),
        (CHAT, {**HI, "min_pp": 1}, "min_pp", "unknown_parameter"),
        (CHAT, {**HI, "guided_json": {}}, "guided_json", "unsupported_parameter"),
        (CHAT, {**HI, "tools": [{}]}, "tools[0].type", "missing_required_parameter"),
        (CHAT, {**HI, "response_format": {"type": "xml"}}, "response_format", None),
        (CHAT, {**HI, "max_tokens": 0}, "max_tokens", None),
        (CHAT, {**HI, "max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", None),
        (CHAT, {**HI, "top_logprobs": 3}, "top_logprobs", None),
        (
            CHAT,
            {**HI, "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
            None,
        ),
        (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content", None),
        (CHAT, {"messages": [{"role": "user", "content": "refuse"}]}, "messages", None),
        (COMPLETIONS, {"prompt": ""}, "prompt", None),
        (COMPLETIONS, {"prompt": [""]}, "prompt", None),
        (COMPLETIONS, {"prompt": "a", "suffix": "b"}, "suffix", "unsupported_value"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, "max_tokens", None),
        (COMPLETIONS, {"prompt": [-1]}, "prompt", None),
        (COMPLETIONS, {"prompt": [VOCAB_SIZE]}, "prompt", None),
        (COMPLETIONS, {"prompt": [[1], [5279552648203111001]]}, "prompt", None),
        (COMPLETIONS, {"prompt": "a", "logit_bias": {"999999": 5}}, "logit_bias", None),
        (COMPLETIONS, {"prompt": "a", "logit_bias": {"-1": 5}}, "logit_bias", None),
        (COMPLETIONS, {"prompt": "a", "logit_bias": {"abc": 1}}, "logit_bias", None),
        (COMPLETIONS, {"prompt": "a", "stop_token_ids": [-5]}, "stop_token_ids", None),
        (COMPLETIONS, {"prompt": "a", "min_tokens": 17}, "min_tokens", None),
        (COMPLETIONS, {"prompt": ["a"] * 1000, "n": 2}, "n", None),
        (COMPLETIONS, {"prompt": "a", "best_of": 1_000_000}, "best_of", "unsupported_value"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_faults_known_before_the_first_event_are_plain_errors(
    client, engine, path, body, param, code, stream
):
    """Streamed or not, the status says no, and the engine never sees the request."""
    before = len(engine.requests)
    status = 404 if code == "model_not_found" else 400
    error = refused(client.post(path, json={**body, "stream": stream}), status)
    assert error["param"] == param
    assert code is None or error["code"] == code
    assert len(engine.requests) == before


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("body", "requested"),
    [
        ({"prompt": [65] * (MAX_MODEL_LEN + 1)}, MAX_MODEL_LEN + 2),
        ({"prompt": [65] * MAX_MODEL_LEN}, MAX_MODEL_LEN + 1),
        ({"prompt": [65] * 500, "max_tokens": 50}, 550),
    ],
)
def test_overflow_has_the_sentence_and_the_code(client, body, requested, stream):
    """A prompt or a limit that does not fit is refused before any event."""
    error = refused(client.post(COMPLETIONS, json={**body, "stream": stream}), 400)
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith(
        f"This model's maximum context length is {MAX_MODEL_LEN} tokens. "
        f"However, you requested {requested} tokens"
    )


def test_limits_default_to_16_in_completions_and_the_rest_in_chat(client, engine):
    """A missing limit is the documented default, cut where the context ends."""
    client.post(COMPLETIONS, json={"prompt": "a"})
    client.post(COMPLETIONS, json={"prompt": [65] * (MAX_MODEL_LEN - 5)})
    client.post(CHAT, json={**HI, "max_tokens": None})
    client.post(CHAT, json={**HI, "max_completion_tokens": 7})
    limits = [request.params.max_tokens for request in engine.requests[-4:]]
    rest = MAX_MODEL_LEN - engine.requests[-1].num_prompt_tokens
    assert limits == [16, 5, rest, 7]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_stream_joins_to_the_whole_answer(client, path):
    """Deltas concatenate to the same text, with the same reason and usage."""
    body = {"prompt": ["A", "AB"]} if path == COMPLETIONS else dict(HI)
    body |= {"n": 2, "max_tokens": 20, "seed": 7}
    whole = client.post(path, json=body).json()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = events(client.post(path, json=body | options))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == whole["usage"]
    assert all("usage" not in chunk for chunk in chunks[:-1])
    for field in ("id", "created", "model", "object", "seed"):
        assert len({chunk[field] for chunk in chunks}) == 1
    assert {chunk["seed"] for chunk in chunks} == {whole["seed"]} == {7}
    for choice in whole["choices"]:
        deltas = [d for c in chunks for d in c["choices"] if d["index"] == choice["index"]]
        if path == CHAT:
            texts = [delta["delta"].get("content", "") for delta in deltas]
            assert [d["delta"].get("role") for d in deltas] == ["assistant"] + [None] * (
                len(deltas) - 1
            )
            assert "".join(texts) == choice["message"]["content"] == "Hello, world"
        else:
            assert "".join(delta["text"] for delta in deltas) == choice["text"] == "Hello, world"
        reasons = [delta["finish_reason"] for delta in deltas]
        assert reasons == [None] * (len(deltas) - 1) + [choice["finish_reason"]]


def test_usage_adds_up_over_prompts_and_choices(client):
    """Each prompt counts once, each choice's tokens count, the end token included."""
    body = {"prompt": ["A", "AB"], "n": 2, "max_tokens": 5}
    usage = client.post(COMPLETIONS, json=body).json()["usage"]
    assert usage == {
        "prompt_tokens": 3,
        "completion_tokens": 20,
        "total_tokens": 23,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_continuous_usage_grows_with_every_chunk(client):
    """Benchmarks ask for it; the last counts are the final ones."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": "a", "stream": True, "stream_options": options}
    chunks = events(client.post(COMPLETIONS, json=body))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] == 13


def test_without_a_seed_each_request_reports_its_own(client, engine):
    """What was drawn can be asked for again."""
    one = client.post(COMPLETIONS, json={"prompt": "a"}).json()["seed"]
    other = client.post(COMPLETIONS, json={"prompt": "a"}).json()["seed"]
    assert one != other
    assert [request.params.seed for request in engine.requests[-2:]] == [one, other]


def test_ignored_fields_are_said_in_a_header(client):
    """Harmless fields and inner keys are accepted, and named."""
    message = {"role": "user", "content": "a", "cache_control": {}}
    body = {"messages": [message], "user": "u", "store": False, "reasoning_effort": "low"}
    for stream in (False, True):
        response = client.post(CHAT, json={**body, "stream": stream})
        assert response.status_code == 200
        names = response.headers["x-ignored-fields"].split(", ")
        assert names == ["user", "messages[].cache_control", "reasoning_effort"]


def test_a_body_over_the_limit_is_413(client):
    """Announced or not, a body is not read beyond the limit, and the connection survives."""
    big = b" " * 9_000_000
    refused(client.post(COMPLETIONS, content=big), 413)
    refused(client.post(COMPLETIONS, content=iter([big])), 413)
    ping(client)


def test_a_huge_prompt_is_refused_by_its_bytes(client):
    """Whatever its tokens are, they cannot fit; the message says at least how many there are."""
    error = refused(client.post(COMPLETIONS, json={"prompt": "word " * 1_000_000}), 400)
    assert error["code"] == "context_length_exceeded"
    assert "at least" in error["message"]


def test_stop_strings_are_cut_and_never_streamed(client):
    """Not a byte past the cut leaves the server, log-probabilities included."""
    body = {"prompt": "a", "stop": ["o, w"], "logprobs": 1}
    whole = client.post(COMPLETIONS, json=body).json()["choices"][0]
    assert (whole["text"], whole["finish_reason"]) == ("Hell", "stop")
    assert whole["stop_reason"] == "o, w"
    assert whole["logprobs"]["tokens"] == list("Hell")
    response = client.post(COMPLETIONS, json={**body, "stream": True})
    chunks = events(response)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hell"
    tokens = [c["choices"][0]["logprobs"]["tokens"] for c in chunks if c["choices"][0]["logprobs"]]
    assert [token for chunk in tokens for token in chunk] == list("Hell")


def test_scoring_a_prompt_returns_its_log_probabilities_and_no_token(client):
    """With echo and max_tokens 0: the first token has none, the text is the prompt."""
    body = {"prompt": [72, 105, 33], "echo": True, "logprobs": 1, "max_tokens": 0}
    answer = client.post(COMPLETIONS, json=body).json()
    (choice,) = answer["choices"]
    assert choice["text"] == "Hi!"
    assert choice["logprobs"]["tokens"] == ["H", "i", "!"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]
    assert choice["logprobs"]["top_logprobs"][0] is None
    assert choice["logprobs"]["text_offset"] == [0, 1, 2]
    assert answer["usage"]["completion_tokens"] == 0


def test_tokens_and_text_go_both_ways(client):
    """/tokenize counts what a request would count, for text and for a chat."""
    answer = client.post("/tokenize", json={"prompt": "héy", "return_token_strs": True}).json()
    assert answer["tokens"] == list("héy".encode())
    assert answer["count"] == len(answer["token_strs"]) == 4
    assert answer["max_model_len"] == MAX_MODEL_LEN
    text = client.post("/detokenize", json={"tokens": answer["tokens"]}).json()
    assert text == {"prompt": "héy"}
    chat = client.post("/tokenize", json=HI).json()
    usage = client.post(CHAT, json=HI).json()["usage"]
    assert chat["count"] == usage["prompt_tokens"]
    assert refused(client.post("/detokenize", json={"tokens": [999]}), 400)["param"] == "tokens"
    refused(client.post("/tokenize", json={}), 400)


def test_facts_are_served(client):
    """Models, tokenizer, version, health and readiness answer with what clients read."""
    (card,) = client.get("/v1/models").json()["data"]
    assert card == client.get("/v1/models/fake").json()
    assert card["id"] == "fake"
    assert (card["object"], card["root"]) == ("model", "/models/fake")
    assert card["max_model_len"] == MAX_MODEL_LEN
    assert client.get("/tokenizer_info").json()["eos_token"] == "<eos>"
    assert client.get("/health").json() == {"status": "ready"}
    assert client.get("/ready").status_code == 200
    assert client.get("/version").json()["version"]
    assert client.get("/").headers["content-type"].startswith("text/html")


def test_the_description_names_every_field(client):
    """The OpenAPI page describes bodies, streams and errors, all references resolved."""
    document = client.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    assert "top_logprobs" in schemas["ChatBody"]["properties"]
    operation = document["paths"][CHAT]["post"]
    assert "text/event-stream" in operation["responses"]["200"]["content"]
    text = json.dumps(document)
    for name in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert name in schemas
    assert "HTTPValidationError" not in schemas


def test_a_failure_before_the_first_token_is_a_status(own):
    """The client of a stream gets a plain 500 as well."""
    engine, client = own
    engine.fail_after = 0
    for stream in (False, True):
        error = refused(client.post(COMPLETIONS, json={"prompt": "a", "stream": stream}), 500)
        assert error["message"] == "injected failure"


def test_a_failure_in_a_stream_is_one_error_event(own):
    """After three tokens: one `data: {"error": ...}`, no [DONE], and the stream ends."""
    engine, client = own
    engine.fail_after = 3
    response = client.post(COMPLETIONS, json={"prompt": "a", "stream": True})
    parts = [part for part in response.text.split("\n\n") if part]
    assert len(parts) == 4
    assert json.loads(parts[-1].removeprefix("data: "))["error"]["message"] == "injected failure"
    assert "[DONE]" not in response.text
    engine.fail_after = None
    ping(client)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_request(own, stream):
    """Streamed or not, the engine is told, and the place in the queue is free."""
    engine, client = own
    engine.step_seconds = 0.05
    body = json.dumps({"prompt": "a", "stream": stream}).encode()
    with socket.create_connection((client.base_url.host, client.base_url.port)) as raw:
        raw.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        raw.sendall(body)
        assert wait_until(lambda: engine.open)
        if stream:
            raw.recv(10)
    assert wait_until(lambda: engine.aborted and not engine.open)
    engine.step_seconds = 0.0
    for _ in range(6):
        ping(client)


def test_a_full_queue_is_429_with_retry_after(own):
    """One runs and four wait; the others are told when to return, and later ones are let in."""
    engine, client = own
    engine.step_seconds = 0.5  # nobody ends before the last has come
    with ThreadPoolExecutor(50) as pool:
        calls = [pool.submit(client.post, COMPLETIONS, json={"prompt": "a"}) for _ in range(50)]
        assert wait_until(lambda: sum(call.done() for call in calls) == 45)
        engine.step_seconds = 0.0
        answers = [call.result() for call in calls]
    good = [answer for answer in answers if answer.status_code == 200]
    assert len(good) == 5
    assert all(answer.json()["choices"][0]["text"] == "Hello, world" for answer in good)
    for answer in answers:
        if answer not in good:
            refused(answer, 429)
            assert 1 <= int(answer.headers["retry-after"]) <= 120
    ping(client)


def test_silence_is_filled_with_comments_and_usage_follows_at_once(own):
    """A comment comes while nothing else does, and never after the last token."""
    engine, client = own
    engine.first_step_seconds = 0.2
    engine.step_seconds = 0.12
    body = {"prompt": "a", "max_tokens": 2, "stream": True}
    text = client.post(COMPLETIONS, json=body | {"stream_options": {"include_usage": True}}).text
    assert text.startswith(": keep-alive\n\n")
    assert ": keep-alive" in text[text.index('"text":"H"') :]
    assert ": keep-alive" not in text[text.index('"length"') :]


def test_health_and_ready_follow_the_engine(own):
    """Draining is healthy but not ready; dead is neither; new requests are refused with 503."""
    engine, client = own
    ready = engine.status
    for name, health in (("LOADING", 200), ("DRAINING", 200), ("DEAD", 503)):
        engine.status = type(ready)[name]
        assert client.get("/health").status_code == health
        refused(client.get("/ready"), 503)
        refused(client.post(CHAT, json=HI), 503)
    engine.status = ready
    ping(client)


def test_a_slow_reader_stalls_nobody(own):
    """A stream that nobody reads does not keep others from their answers."""
    _, client = own
    with client.stream("POST", COMPLETIONS, json={"prompt": "a", "stream": True}):
        ping(client)
