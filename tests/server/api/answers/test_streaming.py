"""server.api.answers.streaming: what drives a writer, in failure and haste."""

from __future__ import annotations

import asyncio
import threading

import pytest
from fakes import FakeEngine
from writing import whole, writer

from server.api.answers.streaming import collect, events
from server.api.transport.workers import Workers
from server.errors import InternalError


def test_a_failure_aborts_the_other_choices():
    """One failed choice fails the call, and nothing keeps running."""
    engine = FakeEngine()
    engine.fail_after = 2
    with pytest.raises(InternalError, match="injected failure"):
        whole(engine, prompt="a", n=3)
    assert not engine.open
    assert len(engine.aborted) == 2


def test_closing_a_stream_early_aborts_its_requests():
    """A client that leaves between two events ends the work."""
    engine = FakeEngine()
    engine.step_seconds = 0.01

    async def leave() -> None:
        one = writer(engine, prompt="a", n=2)
        parts = events(one, engine.generate(one.call.requests), Workers(1).writing)
        await anext(parts)
        await parts.aclose()

    asyncio.run(leave())
    assert len(engine.aborted) == 2
    assert not engine.open


@pytest.mark.parametrize(
    ("body", "is_long"),
    [
        ({"prompt": "a", "max_tokens": 300}, False),
        ({"prompt": "a", "max_tokens": 300, "logprobs": 0}, True),
        ({"prompt": "a" * 300, "max_tokens": 1, "prompt_logprobs": 1}, True),
        ({"prompt": "a", "max_tokens": 1, "logprobs": 0}, False),
    ],
)
def test_what_takes_long_to_write_is_written_in_a_thread(body, is_long):
    """The event loop is free while hundreds of scores become JSON."""
    writers = []

    async def run() -> None:
        engine = FakeEngine("x" * 400)
        one = writer(engine, **body)
        answer = one.answer

        def watched(pieces):
            writers.append(threading.get_ident())
            return answer(pieces)

        one.answer = watched
        await collect(one, engine.generate(one.call.requests), Workers(1).writing)

    asyncio.run(run())
    assert (writers != [threading.get_ident()]) is is_long
