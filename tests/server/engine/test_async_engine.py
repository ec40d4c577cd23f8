"""The engine thread serves the event loop, ends what is abandoned, and dies loudly."""

import asyncio
import threading

import pytest
from engines import load_engine, make_request

from server.engine.async_engine import AsyncEngine, _Stop
from server.engine.engine_info import EngineCounts
from server.engine_status import EngineStatus
from server.errors import EngineUnavailableError
from server.request import FinishReason


@pytest.fixture
def loaded(checkpoint):
    """A loaded engine over a small random model."""
    return load_engine(checkpoint("rand-llama-tied"))


async def until(condition) -> None:
    """Wait for something the engine thread is about to do."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def serving(loaded, scenario) -> None:
    """Run a coroutine against a started engine and stop it afterwards."""

    async def main() -> None:
        engine = AsyncEngine(lambda: loaded)
        await engine.start()
        try:
            await scenario(engine)
        finally:
            await engine.stop(grace=0)

    asyncio.run(main())


def test_outputs_of_several_requests_interleave(loaded):
    """One call yields the outputs of all its requests until each has ended."""

    async def scenario(engine: AsyncEngine) -> None:
        requests = [make_request([i, 2], max_tokens=5, ignore_eos=True) for i in range(3)]
        counts = dict.fromkeys([request.request_id for request in requests], 0)
        ends = []
        async for output in engine.generate(requests):
            counts[output.request_id] += len(output.token_ids)
            ends += [output.finish_reason] if output.finish_reason else []
        assert list(counts.values()) == [5, 5, 5]
        assert ends == [FinishReason.LENGTH] * 3

    serving(loaded, scenario)


def test_closing_the_iterator_aborts(loaded):
    """A consumer that leaves early ends its request and frees its part of the cache."""

    async def scenario(engine: AsyncEngine) -> None:
        stream = engine.generate([make_request([1], max_tokens=400, ignore_eos=True)])
        async for _ in stream:
            break
        await stream.aclose()
        await until(lambda: not loaded.engine.has_work)
        assert loaded.engine.scheduler.manager.usage == 0
        assert engine.counts.num_waiting == 0

    serving(loaded, scenario)


def test_stop_waits_for_running_requests(loaded):
    """Within the grace time running requests finish as usual."""

    async def scenario(engine: AsyncEngine) -> None:
        stream = engine.generate([make_request([1], max_tokens=100, ignore_eos=True)])
        await anext(stream)
        stopping = asyncio.create_task(engine.stop(grace=30))
        outputs = [output async for output in stream]
        await stopping
        assert outputs[-1].finish_reason is FinishReason.LENGTH
        assert engine.status is EngineStatus.DRAINING

    serving(loaded, scenario)


def test_stop_ends_what_outlasts_the_grace_time(loaded):
    """After the grace time what still runs ends with an error that says why."""

    async def scenario(engine: AsyncEngine) -> None:
        stream = engine.generate([make_request([1], max_tokens=500, ignore_eos=True)])
        await anext(stream)
        await engine.stop(grace=0)
        outputs = [output async for output in stream]
        assert outputs[-1].finish_reason is FinishReason.ERROR
        assert outputs[-1].error == "The server is shutting down."

    serving(loaded, scenario)


def test_dead_engine_fails_everyone_with_one_error(loaded, monkeypatch):
    """A fault of the engine ends every open request with the same error and refuses new ones."""

    async def scenario(engine: AsyncEngine) -> None:
        streams = [
            engine.generate([make_request([i], max_tokens=500, ignore_eos=True)]) for i in range(2)
        ]
        for stream in streams:
            await anext(stream)
        monkeypatch.setattr(loaded.engine._runner, "submit", lambda _batch: 1 / 0)
        errors = set()
        for stream in streams:
            outputs = [output async for output in stream]
            assert outputs[-1].finish_reason is FinishReason.ERROR
            errors.add(outputs[-1].error)
        assert errors == {"The engine failed: ZeroDivisionError: division by zero"}
        assert engine.status is EngineStatus.DEAD
        assert engine.counts == EngineCounts()  # nothing that it holds will go on
        with pytest.raises(EngineUnavailableError, match="ZeroDivisionError"):
            await anext(engine.generate([make_request([1])]))

    serving(loaded, scenario)


def test_failure_to_load_is_raised_by_start():
    """What keeps the engine from being built is raised where it was started."""

    def build():
        raise ValueError("no such model")

    async def main() -> None:
        engine = AsyncEngine(build)
        with pytest.raises(ValueError, match="no such model"):
            await engine.start()
        assert engine.status is EngineStatus.DEAD
        with pytest.raises(EngineUnavailableError, match="no such model"):
            await anext(engine.generate([make_request([1])]))

    asyncio.run(main())


def test_call_runs_between_steps(loaded):
    """Work runs in the engine thread, idle or busy, and its result or error comes back."""

    async def scenario(engine: AsyncEngine) -> None:
        assert await engine.call(lambda inner: inner.has_work) is False
        stream = engine.generate([make_request([1], max_tokens=400, ignore_eos=True)])
        await anext(stream)
        thread, busy = await engine.call(
            lambda inner: (threading.current_thread().name, inner.has_work)
        )
        assert (thread, busy) == ("engine", True)
        with pytest.raises(ZeroDivisionError):
            await engine.call(lambda _inner: 1 / 0)
        await anext(stream)
        await stream.aclose()

    serving(loaded, scenario)


def test_call_ends_with_the_engine(loaded):
    """Who waits for a call when the engine dies or stops is told."""

    async def scenario(engine: AsyncEngine) -> None:
        stream = engine.generate([make_request([1], max_tokens=400, ignore_eos=True)])
        await anext(stream)
        engine._inbox.put(_Stop())
        with pytest.raises(EngineUnavailableError, match="shutting down"):
            await asyncio.gather(engine.call(lambda _inner: None), engine.stop(grace=0))
        await stream.aclose()

    serving(loaded, scenario)
