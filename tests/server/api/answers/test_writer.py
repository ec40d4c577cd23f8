"""server.api.answers.writer: what the answers of all endpoints have in common."""

from __future__ import annotations

import pytest
from fakes import FakeEngine
from nasty_text import NASTY_TEXTS
from writing import MESSAGES, chunks, stream, whole

from server.api.answers.chat_writer import ChatWriter
from server.api.answers.completion_writer import CompletionWriter


@pytest.mark.parametrize("body", [{"prompt": ["a", "b"]}, {"messages": MESSAGES}])
def test_a_finish_reason_stands_alone_and_last(body):
    """Each choice ends with a chunk that carries nothing else."""
    for n in (1, 3):
        ends = {}
        for chunk in chunks(stream(FakeEngine(), n=n, **body)):
            (choice,) = chunk["choices"]
            assert choice["index"] not in ends
            if choice["finish_reason"] is not None:
                ends[choice["index"]] = choice.get("text", choice.get("delta"))
        assert list(ends.values()) in ([""] * len(ends), [{}] * len(ends))
        assert len(ends) == n * len(body.get("prompt", [1]))


def test_usage_comes_last_and_only_if_asked_for():
    """One chunk without choices, directly before [DONE]."""
    with_usage = chunks(stream(FakeEngine(), prompt="a", stream_options={"include_usage": True}))
    assert [chunk["choices"] == [] for chunk in with_usage] == [False] * 13 + [True]
    assert with_usage[-1]["usage"]["completion_tokens"] == 13
    assert all("usage" not in chunk for chunk in chunks(stream(FakeEngine(), prompt="a")))


def test_token_ids_are_shown_when_asked_for():
    """Prompt ids once, generated ids with their chunks."""
    seen = chunks(stream(FakeEngine("ok"), prompt="a", return_token_ids=True))
    choices = [chunk["choices"][0] for chunk in seen]
    assert choices[0]["prompt_token_ids"] == [97]
    assert [id_ for choice in choices for id_ in choice["token_ids"]] == [*b"ok", 257]
    answer = whole(FakeEngine("ok"), messages=MESSAGES, return_token_ids=True)
    assert answer["choices"][0]["token_ids"] == [*b"ok", 257]
    assert answer["prompt_token_ids"][:4] == list(b"user")


@pytest.mark.parametrize("body", [{"prompt": "a"}, {"messages": MESSAGES}])
@pytest.mark.parametrize("text", ["two\nlines", *NASTY_TEXTS[:12]])
def test_events_of_text_alone_are_those_of_the_long_way(body, text, monkeypatch):
    """What is put between what was encoded before equals, but for ids, what is encoded anew."""
    body = {**body, "n": 2, "seed": 1, "max_tokens": 400}
    short = chunks(stream(FakeEngine(text), **body))
    for kind in (ChatWriter, CompletionWriter):
        monkeypatch.setattr(kind, "_is_plain", False)
    long = chunks(stream(FakeEngine(text), **body))
    assert [kept(chunk) for chunk in short] == [kept(chunk) for chunk in long]


def kept(chunk: dict) -> list[tuple[str, object]]:
    """A chunk with its fields in order, without what differs between two calls."""
    return [(name, value) for name, value in chunk.items() if name not in ("id", "created")]
