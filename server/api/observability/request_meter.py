"""RequestMeter: what calls ask for, how long they take and how they end, counted.

It looks at the engine's outputs on their way to the answer, on the event loop, and takes the
engine's own times from the timeline; the engine never waits for it. The rules of counting:

- A request is what the engine runs: one for each prompt and choice, as in vLLM.
- Each is counted once, with the reason for which it ended: "stop", "length", "error", "refused" if
  its own demands left it nothing to say, or "abort" when the client left or the call failed. What
  was refused before it ran was never a request.
- Tokens are counted when a call is complete, as its usage says: each prompt once, choices added up.
  A call that was aborted or failed has no usage and adds nothing.
- Times of a whole request are those of requests that ended with "stop" or "length".
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from server.api.generation_call import GenerationCall
from server.api.observability.distribution import Distribution
from server.api.observability.genai import request_attributes
from server.api.protocols import EngineClient
from server.api.transport.exchange import CURRENT
from server.request import FinishReason, Request, RequestOutput

_TO_FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_BETWEEN_TOKENS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
_OF_A_REQUEST = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_CHOICES = (1, 2, 5, 10, 20)
_TOKENS = tuple(digit * 10**power for power in range(7) for digit in (1, 2, 5))
"""Bounds as vLLM has them; those of tokens end at the context's length when they are shown."""


def _requests() -> Distribution:
    return Distribution(_OF_A_REQUEST)


def _tokens() -> Distribution:
    return Distribution(_TOKENS)


@dataclass(slots=True)
class Tallies:
    """All that is counted; times in seconds."""

    num_finished: Counter[FinishReason] = field(default_factory=Counter)
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    time_to_first_token: Distribution = field(default_factory=lambda: Distribution(_TO_FIRST_TOKEN))
    between_tokens: Distribution = field(default_factory=lambda: Distribution(_BETWEEN_TOKENS))
    per_output_token: Distribution = field(default_factory=lambda: Distribution(_BETWEEN_TOKENS))
    """Mean time between the tokens of each request."""
    whole_time: Distribution = field(default_factory=_requests)
    queue_time: Distribution = field(default_factory=_requests)
    inference_time: Distribution = field(default_factory=_requests)
    prefill_time: Distribution = field(default_factory=_requests)
    decode_time: Distribution = field(default_factory=_requests)
    prompt_tokens: Distribution = field(default_factory=_tokens)
    output_tokens: Distribution = field(default_factory=_tokens)
    max_tokens: Distribution = field(default_factory=_tokens)
    num_choices: Distribution = field(default_factory=lambda: Distribution(_CHOICES))


class RequestMeter:
    """Counts what passes.

    Args:
        engine: Its timeline knows when a request started and when it had its first token.
    """

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self.tallies = Tallies()

    async def watch(
        self, call: GenerationCall, outputs: AsyncGenerator[RequestOutput, None]
    ) -> AsyncGenerator[RequestOutput, None]:
        """The outputs as they come, each counted before it is passed on.

        Args:
            call: Whose outputs they are.
            outputs: Closed in the end.
        """
        self.tallies.num_choices.observe(call.n)
        running = {request.request_id: _Run(request) for request in call.requests}
        ended: list[_Run] = []
        try:
            async with aclosing(outputs):
                async for output in outputs:
                    run = running[output.request_id]
                    self._advance(run, output)
                    if output.finish_reason is not None:
                        ended.append(running.pop(run.request_id))
                        self._finish(run, output.finish_reason)
                        if not running:
                            self._complete(call, ended)
                    yield output
        finally:
            self.tallies.num_finished[FinishReason.ABORT] += len(running)
            self._trace(call)

    def _trace(self, call: GenerationCall) -> None:
        """Leave what is known of a call to whoever traces its exchange."""
        exchange = CURRENT.get()
        if exchange is None or exchange.trace is None:
            return
        timeline = self._engine.timeline
        found = [timeline.record(request.request_id) for request in call.requests]
        exchange.trace.attributes |= request_attributes(call)
        exchange.trace.records += [record for record in found if record is not None]
        exchange.trace.wall_clock_offset = timeline.wall_clock_offset

    def _advance(self, run: _Run, output: RequestOutput) -> None:
        """Count the time that a token took."""
        run.num_output_tokens = output.num_output_tokens
        if not output.token_ids:
            return
        now = time.monotonic()
        if run.last_token_time is None:
            self.tallies.time_to_first_token.observe(now - run.arrival_time)
        else:
            self.tallies.between_tokens.observe(now - run.last_token_time)
        run.last_token_time = now

    def _finish(self, run: _Run, reason: FinishReason) -> None:
        """Count a request that has ended."""
        tallies, run.reason = self.tallies, reason
        tallies.num_finished[reason] += 1
        if reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        tallies.prompt_tokens.observe(run.num_prompt_tokens)
        tallies.output_tokens.observe(run.num_output_tokens)
        tallies.max_tokens.observe(run.max_tokens)
        tallies.whole_time.observe(time.monotonic() - run.arrival_time)
        self._finish_phases(run)

    def _finish_phases(self, run: _Run) -> None:
        """Count how long a request waited, read its prompt and wrote its answer."""
        tallies = self.tallies
        record = self._engine.timeline.record(run.request_id)
        if record is None or record.started_time is None or record.finished_time is None:
            return  # the timeline remembers only so many
        started, finished = record.started_time, record.finished_time
        first_token = finished if record.first_token_time is None else record.first_token_time
        tallies.queue_time.observe(started - record.arrival_time)
        tallies.inference_time.observe(finished - started)
        tallies.prefill_time.observe(first_token - started)
        tallies.decode_time.observe(finished - first_token)
        if run.num_output_tokens > 1:
            gaps = run.num_output_tokens - 1
            tallies.per_output_token.observe((finished - first_token) / gaps)

    def _complete(self, call: GenerationCall, ended: Sequence[_Run]) -> None:
        """Count the tokens of a call whose requests have all ended."""
        reasons = {run.reason for run in ended}
        if not reasons <= {FinishReason.STOP, FinishReason.LENGTH}:
            return
        num_prompt_tokens = sum(len(prompt.token_ids) for prompt in call.prompts)
        num_output_tokens = sum(run.num_output_tokens for run in ended)
        self.tallies.num_prompt_tokens += num_prompt_tokens
        self.tallies.num_output_tokens += num_output_tokens
        exchange = CURRENT.get()
        if exchange is not None:
            exchange.facts |= {
                "prompt_tokens": num_prompt_tokens,
                "completion_tokens": num_output_tokens,
                "finish_reasons": sorted(reasons),
            }


class _Run:
    """One request on its way; what is read of it is read before the engine has it."""

    def __init__(self, request: Request) -> None:
        self.request_id = request.request_id
        self.arrival_time = request.arrival_time
        self.num_prompt_tokens = request.num_prompt_tokens
        self.max_tokens = request.params.max_tokens
        self.num_output_tokens = 0
        self.last_token_time: float | None = None
        self.reason = FinishReason.ABORT
        """Until it ends in another way."""
