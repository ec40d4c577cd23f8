"""server.fleet.journaled_engine: an answer goes on at another engine as if nothing had happened."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

import pytest
from engines import load_engine, make_request

from server.fleet.journaled_engine import RECORDER, JournaledEngine, Recorder
from server.request import RequestOutput

PARAMS = {"max_tokens": 12, "temperature": 0.8, "seed": 3, "logprobs": 1}


async def run(
    path: Path, earlier: Sequence[RequestOutput], *, stop_after: int = 1000
) -> tuple[list[RequestOutput], list[RequestOutput]]:
    """What an engine says for two requests, and what of it was recorded."""
    engine = JournaledEngine(lambda: load_engine(path))
    await engine.start()
    recorded: list[RequestOutput] = []
    said: list[RequestOutput] = []
    RECORDER.set(Recorder(earlier, recorded.append, lambda: None))
    requests = [
        make_request(range(5, 25), request_id=f"call-{choice}", choice=choice, **PARAMS)
        for choice in range(2)
    ]
    async with aclosing(engine.generate(requests)) as outputs:
        async for output in outputs:
            said.append(output)
            if len(said) == stop_after:
                break
    await engine.stop(5)
    return said, recorded


@pytest.mark.parametrize("cut", [1, 3, 10, 23, 24])
def test_another_engine_says_the_same(checkpoint, cut):
    """Whatever was brought before is said again in its order; then it goes on to the same end."""
    path = checkpoint("rand-llama-untied")
    whole, recorded = asyncio.run(run(path, []))
    assert recorded == whole
    assert len(whole) == 24
    said, more = asyncio.run(run(path, whole[:cut]))
    assert said[:cut] == whole[:cut]
    assert said[cut:] == more
    for choice in range(2):
        name = f"call-{choice}"
        mine = [output for output in said if output.request_id == name]
        assert [output._replace(num_cached_tokens=0) for output in mine] == [
            output._replace(num_cached_tokens=0) for output in whole if output.request_id == name
        ]


def test_a_dead_engine_says_nothing(checkpoint, monkeypatch):
    """Whoever runs the exchange is told, and the exchange waits to be cancelled."""

    async def die() -> tuple[list[RequestOutput], bool]:
        engine = JournaledEngine(lambda: load_engine(checkpoint("rand-llama-untied")))
        await engine.start()
        lost = asyncio.Event()
        said: list[RequestOutput] = []
        RECORDER.set(Recorder([], said.append, lost.set))

        def fail() -> None:
            raise RuntimeError("no memory")

        monkeypatch.setattr(engine._loaded.engine, "step", fail)

        async def consume() -> None:
            async for _ in engine.generate([make_request([5], **PARAMS)]):
                pass

        task = asyncio.create_task(consume())
        await asyncio.wait_for(lost.wait(), 30)
        task.cancel()
        await asyncio.wait({task})
        await engine.stop(0)
        return said, task.cancelled()

    assert asyncio.run(die()) == ([], True)


def test_without_a_recorder_it_is_an_engine(checkpoint):
    """Requests of nobody's exchange run as they always did."""

    async def plain() -> int:
        engine = JournaledEngine(lambda: load_engine(checkpoint("rand-llama-untied")))
        await engine.start()
        count = 0
        async for _ in engine.generate([make_request([5], **PARAMS)]):
            count += 1
        await engine.stop(5)
        return count

    assert asyncio.run(plain()) == 12
