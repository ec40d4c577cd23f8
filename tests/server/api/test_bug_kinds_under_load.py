"""Faults that other servers had when clients leave, crowd or overreach, tried on real engines.

Every client here is a socket; the engines run the scripted and the random checkpoints.
"""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from checkpoints import byte_tokenizer, reference
from engines import load_engine
from serving import serving, wait_until

from server.engine.async_engine import AsyncEngine

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
QUESTION = [{"role": "user", "content": "x"}]
LONG = {
    COMPLETIONS: {"prompt": "A", "max_tokens": 900},
    CHAT: {"messages": QUESTION, "max_tokens": 900, "n": 2},
    RESPONSES: {"input": "x", "max_output_tokens": 900},
    MESSAGES: {"model": "script-gpt2", "messages": QUESTION, "max_tokens": 900},
}
"""Requests of each form that run for long, if `ignore_eos` is set."""


@pytest.fixture(scope="module")
def script(checkpoint) -> Iterator[httpx.Client]:
    loaded = load_engine(checkpoint("script-gpt2"))
    with serving(AsyncEngine(lambda: loaded)) as url, httpx.Client(base_url=url) as client:
        client.timeout = 60
        yield client


@pytest.fixture(scope="module")
def random_llama(checkpoint) -> Iterator[httpx.Client]:
    loaded = load_engine(checkpoint("rand-llama-untied"))
    with serving(AsyncEngine(lambda: loaded)) as url, httpx.Client(base_url=url) as client:
        client.timeout = 60
        yield client


def gauges(client: httpx.Client) -> list[float]:
    """Running, waiting and how much of the cache is held."""
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    lines = client.get("/metrics").text.splitlines()
    return [
        float(line.split()[-1])
        for name in names
        for line in lines
        if line.startswith(f"vllm:{name}{{")
    ]


def send(client: httpx.Client, path: str, body: dict) -> socket.socket:
    """Send a request and do not wait for its answer."""
    url = client.base_url
    connection = socket.create_connection((url.host, url.port), timeout=30)
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
    connection.sendall(head.encode() + raw)
    return connection


def complete(client: httpx.Client, prompt: object, **body: object) -> dict:
    answer = client.post(COMPLETIONS, json={"prompt": prompt, "temperature": 0} | body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", LONG)
def test_a_client_that_leaves_stops_its_request(script, path, stream):
    """Whatever form it had, it runs no longer, and its part of the cache is free."""
    with send(script, path, LONG[path] | {"ignore_eos": True, "stream": stream}):
        assert wait_until(lambda: gauges(script)[0] > 0)
    assert wait_until(lambda: gauges(script) == [0, 0, 0])


def test_nothing_is_lost_by_two_hundred_clients_that_leave(script):
    """Then a request that needs nearly the whole cache is answered as on a fresh server."""
    chance = random.Random(0)
    bodies = [(path, LONG[path] | {"ignore_eos": True}) for path in LONG]
    whole = {"prompt": ["A" * 960] * 10, "max_tokens": 60, "ignore_eos": True, "temperature": 0}
    before = script.post(COMPLETIONS, json=whole).json()["choices"]

    def leave(number: int) -> None:
        path, body = bodies[number % 4]
        with send(script, path, body | {"stream": number % 8 > 3}):
            time.sleep(chance.uniform(0, 0.1))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(leave, range(200)))
    assert wait_until(lambda: gauges(script) == [0, 0, 0])
    assert (
        script.post(COMPLETIONS, json=whole | {"prefix_cache": False}).json()["choices"] == before
    )


def test_a_full_queue_refuses_and_serves_the_others(checkpoint):
    """Of fifty at once those beyond the limit get 429, the others their answer, and so the next."""
    loaded = load_engine(checkpoint("script-gpt2"), max_num_seqs=1)
    options = {"max_num_seqs": 1, "max_queue": 4}
    with serving(AsyncEngine(lambda: loaded), **options) as url:
        limits = httpx.Limits(max_connections=60)
        with httpx.Client(base_url=url, timeout=60, limits=limits) as client:
            blocker = send(client, COMPLETIONS, LONG[COMPLETIONS] | {"ignore_eos": True})
            assert wait_until(lambda: gauges(client)[0] == 1)
            body = {"prompt": "A", "max_tokens": 60, "temperature": 0}
            with ThreadPoolExecutor(50) as pool:
                answers = list(pool.map(lambda _: client.post(COMPLETIONS, json=body), range(50)))
            blocker.close()
            answers.append(client.post(COMPLETIONS, json=body))
    refused = [answer for answer in answers if answer.status_code == 429]
    served = [answer.json() for answer in answers if answer.status_code == 200]
    assert refused
    assert len(refused) + len(served) == 51
    assert all(1 <= int(answer.headers["retry-after"]) <= 120 for answer in refused)
    assert all(answer.json()["error"]["message"] for answer in refused)
    assert {answer["choices"][0]["text"][-4:] for answer in served} == {"done"}


def crowd_equals_alone(client: httpx.Client, *, rounds: int) -> None:
    chance = random.Random(1)
    bodies = [
        {
            "prompt": [chance.randrange(256) for _ in range(chance.choice((1, 5, 17, 64, 200)))],
            "max_tokens": chance.choice((1, 3, 20, 60)),
            "stop": chance.choice((None, "e", ["A", "\n"])),
            "temperature": 0,
        }
        for _ in range(16)
    ]

    def ask(body: dict) -> dict:
        return client.post(COMPLETIONS, json=body).json()["choices"][0]

    alone = [ask(body) for body in bodies]
    with ThreadPoolExecutor(16) as pool:
        for _ in range(rounds):
            assert list(pool.map(ask, bodies)) == alone


def test_nobody_gets_the_text_of_another(random_llama):
    """Sixteen requests of very different lengths and ends get the answers they get alone."""
    crowd_equals_alone(random_llama, rounds=3)


@pytest.mark.slow
def test_nobody_gets_the_text_of_another_in_twenty_rounds(random_llama):
    """The same, as often as it takes to meet every order of arrival."""
    crowd_equals_alone(random_llama, rounds=20)


def test_faulty_requests_do_not_disturb_a_stream(script):
    """What is refused beside it leaves a stream as it would be alone."""
    body = {"prompt": "A" * 321, "max_tokens": 60, "temperature": 0, "stream": True}
    with script.stream("POST", COMPLETIONS, json=body) as response:
        lines = response.iter_lines()
        text = next(lines)
        for prompt in ([-1], [264], [2**63], [1.5], [True], [[1], [999]], "", "A" * 5_000_000):
            assert script.post(COMPLETIONS, json={"prompt": prompt}).status_code == 400
        events = [text, *lines]
    chunks = [json.loads(line[6:]) for line in events if line and "[DONE]" not in line]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "1234567890" * 6


def test_a_prompt_as_long_as_the_context_is_refused_before_any_event(checkpoint):
    """Streamed or not: 400 with both numbers, also when only the answer does not fit."""
    loaded = load_engine(checkpoint("rand-gpt2"))
    with serving(AsyncEngine(lambda: loaded)) as url, httpx.Client(base_url=url) as client:
        for prompt, options, asked in (
            ([1] * 129, {}, 130),
            ([1] * 129, {"stream": True}, 130),
            ([1] * 128, {}, 129),
            ([1] * 100, {"max_tokens": 50}, 150),
            ([1] * 100, {"max_tokens": 29, "stream": True}, 129),
        ):
            answer = client.post(COMPLETIONS, json={"prompt": prompt} | options)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
            assert f"is 128 tokens. However, you requested {asked} tokens" in error["message"]
        fits = {"prompt": [1] * 100, "max_tokens": 28, "ignore_eos": True}
        usage = client.post(COMPLETIONS, json=fits).json()["usage"]
        assert usage["completion_tokens"] == 28


def test_repetition_penalty_picks_the_token_that_transformers_picks(random_llama, checkpoint):
    """The penalty counts the prompt's tokens as well as the answer's."""
    model = reference(checkpoint("rand-llama-untied"))
    chance = random.Random(2)
    changed = 0
    for _ in range(4):
        text = "".join(chance.choices("abcdefghij", k=40))
        answer = complete(random_llama, text, max_tokens=12, repetition_penalty=1.5)
        ids = byte_tokenizer()(text, return_tensors="pt")
        expected = model.generate(
            **ids, max_new_tokens=12, do_sample=False, repetition_penalty=1.5, pad_token_id=0
        )[0, 40:]
        shown = byte_tokenizer().decode(expected, skip_special_tokens=True)
        assert answer["text"].rstrip("\ufffd") == shown.rstrip("\ufffd")
        changed += answer["text"] != complete(random_llama, text, max_tokens=12)["text"]
    assert changed


@pytest.fixture(scope="module")
def smollm2(smollm2_gguf) -> Iterator[httpx.Client]:
    loaded = load_engine(smollm2_gguf, kv_cache_memory=256 * 2**20, threads=2)
    if loaded.info.kernels == "torch":
        pytest.skip("the native kernels, which promise the same bits, were not built")
    with serving(AsyncEngine(lambda: loaded)) as url, httpx.Client(base_url=url) as client:
        client.timeout = 120
        yield client


def test_answers_are_whole_when_the_cache_is_too_small(checkpoint, monkeypatch):
    """Of four streams, one with echo, some give way; texts, scores and usage are as undisturbed."""
    path, per_token = checkpoint("rand-llama-untied"), 2 * 3 * 2 * 16 * 4
    small = load_engine(path, kv_cache_memory=17 * 16 * per_token, max_model_len=160)
    prompts = [[(7 * i * k) % 250 for i in range(30 + k)] for k in (1, 2, 3, 4)]
    bodies = [
        {"prompt": ids, "max_tokens": 100, "ignore_eos": True, "temperature": 0, "logprobs": 1}
        for ids in prompts
    ]
    bodies[0]["echo"] = True

    def ask(body: dict) -> tuple[dict, int]:
        answer = httpx.post(f"{url}{COMPLETIONS}", json=body, timeout=60).json()
        return answer["choices"][0], answer["usage"]["total_tokens"]

    scheduler = small.engine.scheduler
    schedule, all_are_here = scheduler.schedule, False

    def schedule_together():
        nonlocal all_are_here
        all_are_here |= scheduler.num_waiting == len(bodies)
        return schedule() if all_are_here else None

    with serving(AsyncEngine(lambda: small)) as url:
        alone = [ask(body) for body in bodies]
        monkeypatch.setattr(scheduler, "schedule", schedule_together)
        with ThreadPoolExecutor(4) as pool:
            crowded = list(pool.map(ask, bodies))
    assert scheduler.num_preemptions > 0
    for (choice, total), (expected, expected_total) in zip(crowded, alone, strict=True):
        assert (choice["text"], total) == (expected["text"], expected_total)
        scores, expected_scores = (
            [score for score in each["logprobs"]["token_logprobs"] if score is not None]
            for each in (choice, expected)
        )
        assert scores == pytest.approx(expected_scores, abs=1e-3)


@pytest.mark.smollm2
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": "The weather today", "logprobs": 0}),
        (CHAT, {"messages": [{"role": "user", "content": "Hi!"}], "logprobs": True}),
    ],
)
def test_a_seed_gives_the_same_bits_in_any_company(smollm2, path, body):
    """Alone, beside four others, as the first of several choices, and without the cache."""

    def ask(**options: object) -> dict:
        seeded = {"temperature": 0.9, "seed": 1234, "max_tokens": 24}
        answer = smollm2.post(path, json=body | seeded | options)
        return answer.json()["choices"][0]

    alone = ask()
    over = threading.Event()
    with ThreadPoolExecutor(4) as pool:
        for number in range(4):
            pool.submit(keep_busy, smollm2.base_url, number, over)
        others = [ask(), ask(n=3), ask(prefix_cache=False), ask()]
        over.set()
    assert others == [alone] * 4
    assert ask(seed=1235) != alone


def keep_busy(url: httpx.URL, number: int, over: threading.Event) -> None:
    """Ask for unseeded texts until it is over."""
    body = {"prompt": "once upon a time " * (9 * number + 1), "max_tokens": 30, "temperature": 1}
    with httpx.Client(base_url=url, timeout=120) as client:
        while not over.is_set():
            client.post(COMPLETIONS, json=body)
