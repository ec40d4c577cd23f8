"""HttpContender: the same engine behind its server, measured by its clients.

Streams are opened together; what counts is the time in which all of them were receiving.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

from server.errors import ConfigurationError
from server.tools.bench.bench import Task
from server.tools.bench.bench_server import BenchServer, records_of
from server.tools.loadtest.stream_client import StreamRecord
from server.tools.loadtest.workload import Lengths, Prompt, random_prompts

if TYPE_CHECKING:
    from model.cost import ForwardCost

_MARGIN = 16
"""Tokens beyond those counted, as the streams do not begin and end at one moment."""


class HttpContender:
    """A running server.

    Args:
        server: It.
        steps: About as many tokens of each stream are counted.
        cost: Of its model.
    """

    name = "kvserve over HTTP"

    def __init__(self, server: BenchServer, *, steps: int, cost: ForwardCost) -> None:
        self.cost = cost
        self._server = server
        self._steps = steps
        self._numbers = count()

    def measure(self, task: Task) -> float:
        """Tokens per second of all streams together; of a prompt, those read."""
        return asyncio.run(self._measure(task))

    async def _measure(self, task: Task) -> float:
        """Read the prompts first, so that they are found in the cache and all streams begin."""
        output = 1 if task.kind == "prompt" else self._steps + _MARGIN
        lengths = Lengths(input_words=task.context, output_tokens=output)
        prompts = random_prompts(task.batch, lengths, seed=next(self._numbers))
        cold = await self._send([Prompt(prompt.messages, 1) for prompt in prompts])
        if task.kind == "prompt":
            return (cold[0].prompt_tokens or 0) / (cold[0].ended - cold[0].sent)
        return common_rate(await self._send(prompts))

    async def _send(self, prompts: Sequence[Prompt]) -> list[StreamRecord]:
        async with self._server.connect() as http:
            await http.open(len(prompts))  # so that all begin together
            sending = [
                self._server.send(http, prompt, record)
                for prompt, record in zip(prompts, records_of(prompts), strict=True)
            ]
            return list(await asyncio.gather(*sending))


def common_rate(records: Sequence[StreamRecord]) -> float:
    """Tokens per second between the first token of the last stream and the end of the first one.

    An event may carry several tokens, or hold one back for a moment: each counts as many as the
    stream had on average.
    """
    assert all(record.arrivals for record in records)
    start = max(record.arrivals[0] for record in records)
    stop = min(record.arrivals[-1] for record in records)
    if stop <= start:
        raise ConfigurationError("the streams did not overlap: measure more --steps")
    tokens = 0.0
    for record in records:
        events = sum(start < arrival <= stop for arrival in record.arrivals)
        tokens += events * record.output_tokens / len(record.arrivals)
    return tokens / (stop - start)
