"""prompt_logprobs, allowed_token_ids and bad_words on the wire, against transformers."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
import torch
from checkpoints import reference, reference_logprobs
from engines import load_engine
from fakes import FakeEngine
from serving import serving

from server.engine.async_engine import AsyncEngine

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = [10, 20, 30, 20, 10, 65, 66]


@pytest.fixture(scope="module")
def logprobs(checkpoint) -> torch.Tensor:
    """Of each position of PROMPT, by transformers."""
    return reference_logprobs(reference(checkpoint("rand-llama-untied")), PROMPT)


@pytest.fixture(scope="module")
def client(checkpoint) -> Iterator[httpx.Client]:
    loaded = load_engine(checkpoint("rand-llama-untied"))
    engine = AsyncEngine(lambda: loaded)
    with serving(engine) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


def complete(client: httpx.Client, **body: object) -> dict:
    answer = client.post(COMPLETIONS, json={"prompt": PROMPT, "temperature": 0, "seed": 1} | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("count", [0, 1, 5])
def test_each_token_of_the_prompt_is_scored(client, logprobs, count):
    """The first has no score; each other has its own and the likeliest alternatives."""
    answer = complete(client, prompt_logprobs=count, max_tokens=1, n=2)
    first, second = (choice["prompt_logprobs"] for choice in answer["choices"])
    assert first == second
    assert len(first) == len(PROMPT)
    assert first[0] is None
    for position, scores in enumerate(first[1:], start=1):
        expected = logprobs[position - 1]
        assert str(PROMPT[position]) in scores
        likeliest = expected.topk(count).indices.tolist() if count else []
        assert set(scores) == {str(PROMPT[position]), *map(str, likeliest)}
        for token, score in scores.items():
            assert score["logprob"] == pytest.approx(expected[int(token)].item(), abs=1e-3)
            rank = likeliest.index(int(token)) + 1 if int(token) in likeliest else None
            assert score["rank"] == rank
    token = next(iter(first[-1]))
    assert first[-1][token]["decoded_token"] == "B"


def test_scores_and_echo_share_the_prompt(client):
    """An echo with other log-probabilities shows its own number of alternatives."""
    both = complete(client, prompt_logprobs=4, echo=True, logprobs=2, max_tokens=1)
    (choice,) = both["choices"]
    assert all(len(scores) in (4, 5) for scores in choice["prompt_logprobs"][1:])
    assert all(len(top) in (2, 3) for top in choice["logprobs"]["top_logprobs"][1:])
    assert "prompt_logprobs" not in complete(client, max_tokens=1)["choices"][0]


def test_chat_has_the_scores_beside_its_choices(checkpoint):
    """One list for the call, as vLLM writes it, as long as its usage says."""
    loaded = load_engine(checkpoint("rand-llama-tied"))
    messages = [{"role": "user", "content": "hi"}] * 3
    body = {"messages": messages, "max_tokens": 1, "prompt_logprobs": 1}
    with serving(AsyncEngine(lambda: loaded)) as url:
        answer = httpx.post(f"{url}{CHAT}", json=body).json()
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert answer["prompt_logprobs"][0] is None


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_streams_have_no_prompt_scores(path):
    """It is said before anything is sent."""
    prompt = {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}
    prompt.pop("messages" if path == COMPLETIONS else "prompt")
    with serving(FakeEngine()) as url:
        body = {**prompt, "stream": True, "prompt_logprobs": 1}
        answer = httpx.post(f"{url}{path}", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt_logprobs"


LETTERS = list(range(ord("a"), ord("z") + 1))


def test_only_allowed_tokens_are_generated(client, logprobs):
    """Every token is one of them, and their log-probabilities are the model's own."""
    answer = complete(client, allowed_token_ids=LETTERS, max_tokens=12, temperature=1, logprobs=0)
    (choice,) = answer["choices"]
    assert len(choice["text"]) == 12
    assert set(choice["text"]) <= set(map(chr, LETTERS))
    expected = logprobs[-1][ord(choice["text"][0])].item()
    assert choice["logprobs"]["token_logprobs"][0] == pytest.approx(expected, abs=1e-3)


def test_a_bad_word_is_never_generated(client):
    """What the model would have said is avoided, as a sequence and as a single token."""

    def text(**body: object) -> str:
        answer = complete(client, max_tokens=8, allowed_token_ids=LETTERS, **body)
        return answer["choices"][0]["text"]

    pair = text()[:2]
    avoided = text(bad_words=[pair])
    assert avoided[0] == pair[0]
    assert pair not in avoided
    assert pair[0] not in text(bad_words=[pair[0]])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"bad_words": [""]}, "bad_words[0]"),
        ({"bad_words": "x"}, "bad_words"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
        ({"allowed_token_ids": [10**9]}, "allowed_token_ids"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": True}, "prompt_logprobs"),
    ],
)
def test_bad_values_are_named(client, body, param):
    """400 with the field, before anything runs."""
    answer = client.post(COMPLETIONS, json={"prompt": PROMPT} | body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
