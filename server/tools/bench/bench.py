"""Bench: tokens per second of prompts, of one request and of many, on the engine that serves.

Tasks are measured in rounds, every contender once a round, so that a machine that slows down for a
while slows all of them. Times whole calls of Engine.step(): scheduler, model, sampler and
detokeniser. Reads the clock it is given and prints nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import median
from typing import TYPE_CHECKING, Literal, Protocol

from server.engine.loaded_engine import LoadedEngine
from server.request import Request, SamplingParams

if TYPE_CHECKING:
    from model.cost import ForwardCost

Progress = Callable[[str, int, int], None]
"""Told what is being measured, how many measurements are done, and how many there will be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """Something to measure."""

    kind: Literal["prompt", "decode"]
    batch: int = 1
    """Requests that run at once."""
    context: int
    """Tokens of each prompt; for decoding, what each request sees when the clock starts."""

    def __str__(self) -> str:
        if self.kind == "prompt":
            return f"prompt of {self.context:,}"
        plural = "" if self.batch == 1 else "s"
        return f"decode, {self.batch} request{plural} at {self.context:,}"

    def step_bytes(self, cost: ForwardCost, *, steps: int) -> int | None:
        """Bytes a decode step must read, halfway through; None for a prompt.

        That is all weights, once, and the keys and values that each request sees.
        """
        if self.kind == "prompt":
            return None
        length = self.context + steps // 2
        own = cost.bytes_moved(start=length - 1, stop=length) - cost.weights_bytes
        return cost.weights_bytes + self.batch * own


class Contender(Protocol):
    """Kind of measurement."""

    @property
    def name(self) -> str:
        """As the table calls it."""

    @property
    def cost(self) -> ForwardCost | None:
        """Of its model, if it is one of ours."""

    def measure(self, task: Task) -> float:
        """Tokens per second; of a prompt those read, else those written."""


@dataclass(slots=True)
class Figure:
    """What one contender did at one task: tokens per second, one sample a round."""

    contender: str
    task: Task
    cost: ForwardCost | None = None
    """Of the contender's model, if it is one of ours; others may hold weights in fewer bytes."""
    samples: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The middle sample."""
        return median(self.samples)

    @property
    def spread(self) -> float:
        """From the slowest to the fastest sample, as a part of the median."""
        return (max(self.samples) - min(self.samples)) / self.median

    def to_json(self, *, steps: int, bandwidth: float) -> dict[str, object]:
        """The figure, and for our own decoding its share of what memory allows.

        Args:
            steps: Decode steps of one measurement.
            bandwidth: Bytes a second; what is above it says that it was measured too low, or
                that the model stays in a cache.
        """
        step_bytes = None
        if self.cost is not None:
            step_bytes = self.task.step_bytes(self.cost, steps=steps)
        share = None
        if step_bytes is not None:
            share = self.median / self.task.batch * step_bytes / bandwidth
        return {
            "contender": self.contender,
            "kind": self.task.kind,
            "batch": self.task.batch,
            "context": self.task.context,
            "tokens_per_second": self.median,
            "spread": self.spread,
            "samples": self.samples,
            "step_bytes": step_bytes,
            "memory_share": share,
            "above_limit": share is not None and share > 1.0,
        }


class EngineContender:
    """The engine in this process.

    Args:
        loaded: Nothing else may use it meanwhile.
        steps: Decode steps of one measurement.
        name: As the table calls it.
        clock: Seconds.
    """

    def __init__(
        self,
        loaded: LoadedEngine,
        *,
        steps: int,
        name: str = "kvserve",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.name = name
        self.cost = loaded.info.cost
        self._engine = loaded.engine
        self._vocab_size = loaded.info.vocab_size
        self._steps = steps
        self._clock = clock
        self._numbers = count()
        self._source = random.Random("bench")  # noqa: S311 - no secret depends on it

    def measure(self, task: Task) -> float:
        """Tokens per second of a task."""
        prompts = [
            self._source.choices(range(self._vocab_size), k=task.context) for _ in range(task.batch)
        ]
        return self._prompt(prompts[0]) if task.kind == "prompt" else self._decode(prompts)

    def _prompt(self, token_ids: Sequence[int]) -> float:
        """Until the first token is there."""
        request = self._request(token_ids, max_tokens=1)
        started = self._clock()
        self._engine.generate([request])
        return len(token_ids) / (self._clock() - started)

    def _decode(self, prompts: Sequence[Sequence[int]]) -> float:
        """Steps in which every request gets a token, after the one in which the last began.

        The prompts are read beforehand and found in the cache, so that all begin together and
        have the same length.
        """
        self._engine.generate([self._request(prompt, max_tokens=1) for prompt in prompts])
        requests = [self._request(prompt, max_tokens=2 * self._steps) for prompt in prompts]
        for request in requests:
            self._engine.add(request)
        while not all(request.num_output_tokens for request in requests):
            self._engine.step()
        started = self._clock()
        tokens = sum(len(self._engine.step()) for _ in range(self._steps))
        seconds = self._clock() - started
        for request in requests:
            self._engine.abort(request.request_id)
        return tokens / seconds

    def _request(self, token_ids: Sequence[int], *, max_tokens: int) -> Request:
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        name = f"bench-{next(self._numbers)}"
        return Request(request_id=name, token_ids=list(token_ids), params=params)


def measure_all(
    pairs: Sequence[tuple[Task, Contender]],
    *,
    repeat: int,
    progress: Progress = lambda *_: None,
    before_turn: Callable[[], None] = lambda: None,
) -> list[Figure]:
    """Measure each task with its contender, `repeat` times after one round that is not counted.

    A turn is one task, by all its contenders one after the other.
    The first round brings code, pages and clocks up; its samples are dropped.

    Args:
        pairs: The contenders of a task are neighbours.
        repeat: Rounds that count.
        progress: Told what comes next.
        before_turn: Called at the beginning of each turn.
    """
    figures = [Figure(contender.name, task, contender.cost) for task, contender in pairs]
    total = (repeat + 1) * len(figures)
    done = 0
    for number in range(repeat + 1):
        turn: Task | None = None
        for figure, (task, contender) in zip(figures, pairs, strict=True):
            if task != turn:
                turn = task
                before_turn()
            progress(f"{contender.name}, {task}", done, total)
            sample = contender.measure(task)
            if number:
                figure.samples.append(sample)
            done += 1
    return figures


def tasks_of(*, prompts: Iterable[int], batches: Iterable[tuple[int, int]]) -> list[Task]:
    """Prompts of these lengths first, then decoding for so many requests at such a context."""
    return [
        *(Task(kind="prompt", context=length) for length in prompts),
        *(Task(kind="decode", batch=batch, context=context) for batch, context in batches),
    ]
