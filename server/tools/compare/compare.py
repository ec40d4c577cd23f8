"""Measuring what the cache gains, step by step, on the engine that serves.

Generates one sequence with the cache, timing each step; then chooses the same tokens again without
it, which computes the whole sequence for every one. Uses the engine as the server does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

from server.engine.comparison import Comparison, Run
from server.engine.loaded_engine import LoadedEngine
from server.errors import ConfigurationError
from server.request import Request, RequestOutput, SamplingParams

SHORTEST = 64
Progress = Callable[[str, int, int], None]
"""Told what is being done, how many steps are, and how many there will be."""


def ladder(longest: int) -> list[int]:
    """Doubling lengths from 64 up to `longest`, which is the last whatever it is."""
    lengths = []
    length = SHORTEST
    while length < longest:
        lengths.append(length)
        length *= 2
    return [*lengths, longest]


def sparse_lengths(lengths: Sequence[int], *, whole: int) -> list[int]:
    """Lengths to sample beyond `whole`: each of the ladder's, and the middle before it."""
    marks = sorted({mark for n in lengths for mark in (n, n * 3 // 4) if mark > whole})
    return [whole + 1, *marks] if marks and marks[0] > whole + 1 else marks


class CacheComparison:
    """Runs one comparison.

    Args:
        loaded: The engine; nothing else may use it meanwhile.
        prompt: Token ids that the sequence begins with.
        progress: Told of every step.
    """

    def __init__(
        self, loaded: LoadedEngine, prompt: Sequence[int], *, progress: Progress = lambda *_: None
    ) -> None:
        self._engine = loaded.engine
        self._cost = loaded.info.cost
        self._prompt = list(prompt)
        self._progress = progress

    def run(self, lengths: Sequence[int], *, whole: int, repeats: int = 3) -> Comparison:
        """Measure up to the longest of the lengths.

        Args:
            lengths: Where the two are compared.
            whole: Up to this length every step is done without the cache too; beyond, only steps
                of a few lengths are, as all of them together grow with the cube.
            repeats: How often each of those single steps is measured; the fastest counts.

        Raises:
            ConfigurationError: The prompt is longer than the shortest length.
        """
        if len(self._prompt) >= min(lengths):
            raise ConfigurationError(
                f"the prompt has {len(self._prompt)} tokens; expected fewer than the shortest "
                f"length, {min(lengths)}"
            )
        cached = self._generate(max(lengths), use_cache=True)
        whole = min(whole, max(lengths))
        uncached = self._generate(whole, use_cache=False)
        sequence = self._prompt + cached.token_ids
        marks = sparse_lengths(lengths, whole=whole)
        for done, length in enumerate(marks):
            self._progress(f"one step of {length:,} tokens without the cache", done, len(marks))
            seconds, token_id = min(self._single_step(sequence[:length]) for _ in range(repeats))
            uncached.add(length, seconds, token_id)
        return Comparison(cached=cached, uncached=uncached, cost=self._cost)

    def _generate(self, length: int, *, use_cache: bool) -> Run:
        """Every step from the prompt to one that sees `length` tokens."""
        run = Run(use_cache=use_cache)
        first = len(self._prompt)
        words = f"{length:,} tokens {'with' if use_cache else 'without'} the cache"
        steps = self._steps(self._prompt, count=length - first + 1, use_cache=use_cache)
        for number, (seconds, token_id) in enumerate(steps):
            run.add(first + number, seconds, token_id)
            self._progress(words, first + number, length)
        return run

    def _single_step(self, token_ids: list[int]) -> tuple[float, int]:
        """What the cache saves: computing a whole sequence to choose one token."""
        return next(self._steps(token_ids, count=1, use_cache=False))

    def _steps(
        self, token_ids: list[int], *, count: int, use_cache: bool
    ) -> Iterator[tuple[float, int]]:
        """Choose `count` tokens one by one; yields the seconds that each took, and the token."""
        request = Request(
            request_id="compare",
            token_ids=list(token_ids),
            params=SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True),
            use_cache=use_cache,
            prefix_cache=False,
        )
        self._engine.add(request)
        while self._engine.has_work:
            started = perf_counter()
            outputs: list[RequestOutput] = []
            while not outputs:  # a long sequence is computed in several chunks
                outputs = self._engine.step()
            seconds = perf_counter() - started
            yield from ((seconds, output.token_ids[0]) for output in outputs)
