"""FormsComparison: what a new token costs in four forms of attention, as the text grows.

Measures one attention layer alone, so that nothing else is in the times: recomputing everything,
a full cache, a window with sinks, and the state of linear attention. Loads no weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from time import perf_counter

import torch

from model.attention_forms.decoding import (
    AttentionWeights,
    KeepingAll,
    KeepingAState,
    KeepingAWindow,
    RecomputingEverything,
    WayToDecode,
)
from server.tools.compare.form_step import GROWTHS, FormStep

WINDOW, SINKS = 256, 4
STEPS = 9
"""Tokens taken in at each length; their median counts."""
Progress = Callable[[int, int], None]
"""Told the measurements that are done, and how many there will be."""


class FormsComparison:
    """Measures the four forms on a layer of these sizes.

    Args:
        num_heads: Heads of the layer, each with keys and values of its own.
        head_dim: Size of each.
        progress: Told of every measurement.
    """

    def __init__(
        self, num_heads: int, head_dim: int, *, progress: Progress = lambda *_: None
    ) -> None:
        self.num_heads, self.head_dim = num_heads, head_dim
        self._weights = AttentionWeights(num_heads, head_dim).requires_grad_(requires_grad=False)
        self._progress = progress

    def run(self, lengths: Sequence[int]) -> list[FormStep]:
        """Measure at each of the lengths, all forms in turn."""
        found: list[FormStep] = []
        for length in lengths:
            for form, way in self._ways(length + STEPS):
                found.append(self._measure(form, way, length))
                self._progress(len(found), len(lengths) * len(GROWTHS))
        return found

    def _ways(self, max_tokens: int) -> Iterator[tuple[str, WayToDecode]]:
        """The four, each made when it is its turn."""
        weights = self._weights
        makers: Sequence[Callable[[], WayToDecode]] = (
            lambda: RecomputingEverything(weights, max_tokens=max_tokens),
            lambda: KeepingAll(weights, max_tokens=max_tokens),
            lambda: KeepingAWindow(weights, window=WINDOW, sinks=SINKS),
            lambda: KeepingAState(weights),
        )
        for form, make in zip(GROWTHS, makers, strict=True):
            yield form, make()

    def _measure(self, form: str, way: WayToDecode, length: int) -> FormStep:
        with torch.inference_mode():
            text = torch.randn(length + STEPS, self._weights.hidden_size)
            way.fill(text[: length - 1])
            way.step(text[length - 1 : length])  # the first is slower for whatever it finds cold
            num_bytes, seconds = way.num_bytes, []
            for token in text[length:, None]:
                started = perf_counter()
                way.step(token)
                seconds.append(perf_counter() - started)
        median = sorted(seconds)[STEPS // 2]
        return FormStep(form=form, length=length, step_ms=1000 * median, num_bytes=num_bytes)


def forms_to_json(steps: Sequence[FormStep]) -> dict[str, object]:
    """All that was measured, and how each form grows."""
    return {
        "window": WINDOW,
        "sinks": SINKS,
        "growth": dict(GROWTHS),
        "steps": [asdict(step) for step in steps],
    }
