"""DecodeGraphs: decode passes captured once for each size, and replayed with one call.

A captured pass has the addresses, shapes and launches of the one that was captured; only what lies
in its memory changes. So batches are padded to a few sizes, and tables cut at a few widths. Owned
by an executor.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch

BUCKETS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)
"""Numbers of requests that decode passes are padded to; larger ones are not captured."""
NARROW_TOKENS = 4096
"""Tokens of a request that the narrowest block tables have room for; each next one has four times
as many."""

Output = TypeVar("Output")


@dataclass(frozen=True, slots=True)
class Captured(Generic[Output]):
    """A pass that can be repeated."""

    replay: Callable[[], object]
    output: Output
    """Tensors that each replay fills anew."""


class Capture(Protocol):
    """What makes a pass repeatable."""

    def __call__(self, body: Callable[[], Output]) -> Captured[Output]:
        """Capture all that `body` launches; its memory stays in use."""


class CudaCapture:
    """Captures CUDA graphs that share their memory, as no two of them run at the same time."""

    def __init__(self) -> None:
        self._pool: Any = None  # a handle that torch names only in its stubs

    def __call__(self, body: Callable[[], Output]) -> Captured[Output]:
        """Run `body` once for what cannot be captured, such as compilation, and capture it."""
        body()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            output = body()
        if self._pool is None:
            self._pool = graph.pool()
        return Captured(graph.replay, output)


class DecodeGraphs(Generic[Output]):
    """Passes by what they have in common.

    Args:
        capture: What captures; another one is for tests.
    """

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._captured: dict[Hashable, Captured[Output]] = {}

    def run(self, form: Hashable, body: Callable[[], Output]) -> Output:
        """Repeat the pass of this form, captured now if it is the first one."""
        captured = self._captured.get(form)
        if captured is None:
            captured = self._captured[form] = self._capture(body)
        captured.replay()
        return captured.output


def bucket_for(count: int) -> int | None:
    """The number of requests that a batch is padded to; None if it is too large to be captured."""
    return next((bucket for bucket in BUCKETS if bucket >= count), None)


def width_for(num_blocks: int, *, block_size: int, max_blocks: int) -> int:
    """The width in blocks that a table is cut at: no less than `num_blocks`."""
    width = max(1, NARROW_TOKENS // block_size)
    while width < num_blocks:
        width *= 4
    return min(width, max_blocks)
