"""server.api.observability.request_meter: what is counted of outputs on their way to the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest
from fakes import FakeEngine

from server.api.generation_call import GenerationCall
from server.api.inputs.input_processor import InputProcessor
from server.api.observability.distribution import Distribution
from server.api.observability.request_meter import RequestMeter, Tallies
from server.api.schemas.requests import CompletionBody, parse
from server.api.transport.exchange import CURRENT, Exchange
from server.request import FinishReason, RequestOutput

Outputs = AsyncGenerator[RequestOutput, None]


def num_observed(distribution: Distribution) -> float:
    return distribution.buckets[-1][1]


async def everything(outputs: Outputs) -> list[RequestOutput]:
    return [output async for output in outputs]


def metered(
    engine: FakeEngine, read: Callable[[Outputs], object] = everything, **body: object
) -> tuple[Tallies, object]:
    """The tallies after a call whose outputs `read` reads, and what that returned."""
    inputs = InputProcessor(engine.info, engine.tokenizer, None, grammars=engine.grammars)
    call: GenerationCall = inputs.completion(parse(CompletionBody, {"prompt": "abc", **body}))
    meter = RequestMeter(engine)

    async def scenario() -> object:
        return await read(meter.watch(call, engine.generate(call.requests)))

    return meter.tallies, asyncio.run(scenario())


def test_a_calls_tokens_are_counted_as_its_usage_says():
    """The prompt counts once, choices add up, and each choice is a request that ended."""
    tallies, outputs = metered(FakeEngine("hello"), n=2, max_tokens=3)
    assert (tallies.num_prompt_tokens, tallies.num_output_tokens) == (3, 6)
    assert tallies.num_finished == {FinishReason.LENGTH: 2, FinishReason.ABORT: 0}
    assert len(outputs) == 6
    assert num_observed(tallies.num_choices) == 1
    assert tallies.prompt_tokens.sum == 6
    assert tallies.output_tokens.sum == 6


def test_times_are_noted_token_by_token():
    """Each request has one time to its first token and one between any two that follow."""
    tallies, _ = metered(FakeEngine("hello"), n=2, max_tokens=4)
    assert num_observed(tallies.time_to_first_token) == 2
    assert num_observed(tallies.between_tokens) == 6
    assert num_observed(tallies.whole_time) == 2


def test_a_client_that_leaves_aborts_what_still_runs():
    """No usage is added, and the requests count as aborted."""

    async def leave(outputs: Outputs) -> None:
        await anext(outputs)
        await outputs.aclose()

    tallies, _ = metered(FakeEngine("hello"), leave, n=2, max_tokens=4)
    assert tallies.num_finished == {FinishReason.ABORT: 2}
    assert (tallies.num_prompt_tokens, tallies.num_output_tokens) == (0, 0)
    assert num_observed(tallies.whole_time) == 0


def test_a_failed_request_adds_no_tokens():
    """An error is counted by its reason, and its call has no usage."""
    engine = FakeEngine("hello")
    engine.fail_after = 2
    tallies, _ = metered(engine, max_tokens=4)
    assert tallies.num_finished[FinishReason.ERROR] == 1
    assert (tallies.num_prompt_tokens, tallies.num_output_tokens) == (0, 0)
    assert num_observed(tallies.output_tokens) == 0


@pytest.mark.parametrize(("reply", "reasons"), [("hi", ["stop"]), ("hello", ["length"])])
def test_the_access_log_learns_what_came_of_a_call(reply, reasons):
    """Its line carries the counts and the reasons, and no text."""
    exchange = Exchange("one")
    token = CURRENT.set(exchange)
    try:
        metered(FakeEngine(reply), max_tokens=3)
    finally:
        CURRENT.reset(token)
    expected = {"prompt_tokens": 3, "completion_tokens": 3, "finish_reasons": reasons}
    assert exchange.facts == expected
