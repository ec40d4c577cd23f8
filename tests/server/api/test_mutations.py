"""Valid requests of every kind, damaged at random, beside a stream that must not notice.

KVSERVE_MUTATIONS is how many are tried: a few hundred in CI, thousands by hand.
"""

from __future__ import annotations

import copy
import json
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from server_process import ServerProcess, server_process
from serving import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

NUM_MUTATIONS = int(os.environ.get("KVSERVE_MUTATIONS", "300"))
PATIENCE = 180
"""Seconds after which something hangs; nothing is timed otherwise."""
HI = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FUNCTION = {"name": "look", "description": "looks", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
VALID: tuple[tuple[str, dict], ...] = (
    ("/v1/completions", {"prompt": ["a", "b"], "n": 2, "max_tokens": 4, "stop": ["x"], "seed": 1}),
    ("/v1/completions", {"prompt": [[1, 2], [3]], "max_tokens": 1, "echo": True, "logprobs": 1}),
    ("/v1/completions", {"prompt": "ab", "max_tokens": 4, "temperature": 0.5, "top_p": 0.9,
                         "top_k": 5, "min_p": 0.1, "logit_bias": {"65": 2}, "bad_words": ["no"],
                         "presence_penalty": 1, "frequency_penalty": 1, "repetition_penalty": 1.2,
                         "stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/completions", {"prompt": "c", "max_tokens": 9, "allowed_token_ids": [65, 66],
                         "structured_outputs": {"regex": "[AB]{1,4}"}, "priority": 2}),
    ("/v1/chat/completions", {"messages": HI, "max_tokens": 4, "logprobs": True,
                              "top_logprobs": 2, "chat_template_kwargs": {"x": 1}, "user": "u"}),
    ("/v1/chat/completions", {"messages": [*HI, {"role": "assistant", "tool_calls": [CALL]},
                                           {"role": "tool", "tool_call_id": "1", "content": "2"}],
                              "tools": [TOOL], "tool_choice": "auto", "max_tokens": 4}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [
                                  {"type": "text", "text": "a"}]}],
                              "max_completion_tokens": 9, "stream": True, "n": 2,
                              "tools": [TOOL], "tool_choice": {"type": "function",
                                                               "function": {"name": "look"}}}),
    ("/v1/chat/completions", {"messages": HI, "max_tokens": 9, "response_format": {
                                  "type": "json_schema",
                                  "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}}}),
    ("/v1/chat/completions/input_tokens", {"messages": HI, "tools": [TOOL]}),
    ("/v1/responses", {"input": "hi", "max_output_tokens": 4, "instructions": "be kind"}),
    ("/v1/responses", {"input": [{"role": "user", "content": [
                           {"type": "input_text", "text": "hi"}]}], "stream": True,
                       "max_output_tokens": 9, "tools": [{"type": "function"} | FUNCTION],
                       "text": {"format": {"type": "text"}}}),
    ("/v1/messages", {"model": "rand-llama-tied", "messages": HI[1:], "max_tokens": 4,
                      "system": [{"type": "text", "text": "be kind"}], "stop_sequences": ["x"]}),
    ("/v1/messages", {"model": "rand-llama-tied", "messages": HI[1:], "max_tokens": 9,
                      "stream": True, "tools": [{"name": "look", "input_schema": SCHEMA}],
                      "tool_choice": {"type": "any"}}),
    ("/v1/messages/count_tokens", {"model": "rand-llama-tied", "messages": HI[1:]}),
    ("/tokenize", {"prompt": "a b", "add_special_tokens": True, "return_token_strs": True}),
    ("/tokenize", {"messages": HI}),
    ("/detokenize", {"tokens": [65, 66], "skip_special_tokens": False}),
    ("/v1/compare", {"prompt": "a", "max_tokens": 2, "stream": True}),
    ("/v1/attention", {"prompt": "ab", "layer": 0, "head": 0}),
)  # fmt: skip
VALUES: tuple[object, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 7, 0.5, -0.0, 1e-320, 1e308, float("nan"), float("inf"),
    2**31, 2**63, -(2**63) - 1, 10**40, "", " ", "a", "\0", "\ud800", "\u202e🦉é", "x" * 5000,
    "<|end|>", "1", "(", "{{ 1 / 0 }}", [], [[]], [None], [1, "a"], {}, {"": {}}, {"type": "text"},
    [{}], ["a"] * 300, [0] * 3000,
)  # fmt: skip
REFERENCE = {
    "prompt": "undisturbed", "max_tokens": 70, "temperature": 0, "ignore_eos": True, "logprobs": 0,
    "stream": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def server(checkpoint) -> Iterator[ServerProcess]:
    with server_process(
        checkpoint("rand-llama-tied"), max_model_len=384, max_queue=1_000_000, log_level="error"
    ) as server:
        yield server


def places(value: dict | list) -> list[tuple[object, object]]:
    """Every container and key inside a JSON value."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    found: list[tuple[object, object]] = [(value, key) for key in keys]
    for key in keys:
        if isinstance(value[key], (dict, list)):
            found += places(value[key])
    return found


def damage(body: dict, source: random.Random) -> None:
    """Change one place of a body: another value, none, a second one, a nest, a new field."""
    container, key = source.choice(places(body) or [(body, "n")])
    present = container.get(key) if isinstance(container, dict) else container[key]
    action = source.randrange(9)
    if action == 0 and container is not body:
        del container[key]
    elif action == 1 and isinstance(container, dict):
        container[source.choice(["", "n", "nn", "type", "a\nb", "x" * 300, "é"])] = 1
    elif action == 2 and isinstance(container, list):
        container *= source.choice([2, 50])
    elif action == 3:
        for _ in range(source.choice([1, 3, 40])):
            present = [present]
        container[key] = present
    elif action == 4:
        other, name = source.choice(places(source.choice(VALID)[1]))
        container[key] = copy.deepcopy(other[name])
    else:
        alike = [value for value in VALUES if type(value) is type(present)]
        container[key] = copy.deepcopy(source.choice(alike if alike and action < 7 else VALUES))


def mutation(number: int) -> tuple[str, bytes]:
    """A path and what to send there, the same for a number whenever it is asked for."""
    source = random.Random(number)
    path, valid = source.choice(VALID)
    body = copy.deepcopy(valid)
    for _ in range(source.choice([1, 1, 2, 4])):
        damage(body, source)
    raw = bytearray(json.dumps(body).encode())
    if source.random() < 0.06:
        for _ in range(source.choice([1, 5])):
            raw[source.randrange(len(raw))] = source.randrange(256)
    if source.random() < 0.04:
        del raw[source.randrange(len(raw)) :]
    return path, bytes(raw)


def check_error(path: str, error: dict) -> None:
    """The shape that the clients of a path read."""
    if path.startswith("/v1/messages"):
        assert error["type"] == "error"
        assert isinstance(error["error"]["type"], str)
    else:
        assert error.keys() == {"error"}
        assert error["error"].keys() == {"message", "type", "param", "code"}
        assert isinstance(error["error"]["code"], (str, type(None)))
    message = error["error"]["message"]
    assert isinstance(message, str)
    assert message
    assert "Traceback" not in message


def check_answer(path: str, answer: httpx.Response) -> None:
    """A whole answer, a whole stream, or an error of the caller's in the right shape."""
    if answer.status_code != 200:
        assert 400 <= answer.status_code < 500
        assert answer.status_code not in (405, 422)
        assert answer.status_code != 429 or path == "/v1/compare"  # one comparison at a time
        check_error(path, answer.json())
    elif answer.headers["content-type"].startswith("text/event-stream"):
        assert '"error":{' not in answer.text.replace(" ", "")
        assert answer.text.endswith("\n\n")
    else:
        json.loads(answer.text, parse_constant=pytest.fail)


def reference(client: httpx.Client) -> list[tuple[str, float]]:
    """The tokens of a stream and their log-probabilities."""
    tokens: list[tuple[str, float]] = []
    with client.stream("POST", "/v1/completions", json=REFERENCE) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    for line in lines:
        scores = json.loads(line)["choices"][0]["logprobs"] or {"tokens": [], "token_logprobs": []}
        tokens += zip(scores["tokens"], scores["token_logprobs"], strict=True)
    return tokens


def repeated(work: Callable[[], object], until: threading.Event) -> list[object]:
    """What some work brings each time, again and again until told to end."""
    results = [work()]
    while not until.is_set():
        results.append(work())
    return results


def test_damaged_requests_are_refused_in_the_right_shape_and_disturb_nobody(server):
    """No damage brings a 5xx, a hang or another error shape, nor changes a stream beside it."""
    statuses: Counter[int] = Counter()

    def attempt(number: int) -> None:
        path, raw = mutation(number)
        try:
            answer = client.post(path, content=raw)
            check_answer(path, answer)
        except Exception as error:
            raise AssertionError(f"mutation {number}: {path} {raw[:2000]!r}: {error}") from error
        statuses[answer.status_code] += 1

    with (
        httpx.Client(base_url=server.url, timeout=PATIENCE) as client,
        ThreadPoolExecutor(8) as pool,
        ThreadPoolExecutor(1) as beside,
    ):
        undisturbed = reference(client)
        done = threading.Event()
        streams = beside.submit(repeated, lambda: reference(client), done)
        try:
            list(pool.map(attempt, range(NUM_MUTATIONS)))
        finally:
            done.set()
        for stream in streams.result():
            assert [token for token, _ in stream] == [token for token, _ in undisturbed]
            assert [score for _, score in stream] == pytest.approx(
                [score for _, score in undisturbed], abs=1e-4
            )
        print(statuses)  # noqa: T201 - for -s
        assert len(undisturbed) == REFERENCE["max_tokens"]
        assert statuses[200] > NUM_MUTATIONS / 10
        assert statuses[400] > NUM_MUTATIONS / 10
        assert wait_until(lambda: server.is_idle, PATIENCE)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("pattern", "demands"),
    [
        ("CC", {"allowed_token_ids": [65, 66]}),
        ("CC", {"bad_words": ["C"]}),
        ("(A|B)CC", {"allowed_token_ids": [65, 66]}),
        ("(A|B)CC", {"bad_words": ["C"]}),
    ],
)
def test_demands_that_leave_no_token_are_the_callers_fault(server, pattern, demands, stream):
    """A 400 or, once a stream has begun, one error event; whoever runs beside it goes on."""
    body = {"prompt": "c", "max_tokens": 9, "stream": stream, "temperature": 1}
    body |= demands | {"structured_outputs": {"regex": pattern}}
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        undisturbed = reference(client)
        with ThreadPoolExecutor(1) as beside:
            other = beside.submit(reference, client)
            answer = client.post("/v1/completions", json=body)
            assert [token for token, _ in other.result()] == [token for token, _ in undisturbed]
    if stream and pattern != "CC":
        assert answer.status_code == 200
        *chunks, last = [json.loads(line[6:]) for line in answer.text.splitlines() if line]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) in ("A", "B")
        error = last
    else:
        assert answer.status_code == 400
        error = answer.json()
    check_error("/v1/completions", error)
    assert "leave no token" in error["error"]["message"]
    assert error["error"]["type"] == "invalid_request_error"
    assert error["error"]["code"] == "unsatisfiable_request"


def test_a_text_that_is_complete_ends_whatever_min_tokens_says(server):
    """Where the pattern ends there is nothing more to say, and that is no error."""
    body = {"prompt": "c", "max_tokens": 9, "min_tokens": 9, "structured_outputs": {"regex": "CC"}}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=PATIENCE).json()
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("CC", "stop")
