"""How the cost of a piece of work grows with its size, in processor time of the thread."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable

_ROUNDS = 3
_SHORTEST = 0.002
"""Seconds below which a cost is taken for this much: what is near nothing has no growth."""


def cost(work: Callable[[], object]) -> float:
    """Seconds of processor time, the least of a few rounds; whatever `work` raises is its end."""
    found = []
    for _ in range(_ROUNDS):
        gc.collect()
        begun = time.thread_time()
        with contextlib.suppress(Exception):  # a refusal has its cost, too
            work()
        found.append(time.thread_time() - begun)
    return max(min(found), _SHORTEST)


def growth(work: Callable[[int], Callable[[], object]], size: int) -> float:
    """How many times as much eight times the size costs: 8 if linear, 64 if quadratic.

    Args:
        work: Makes the work of a size; making it does not count.
        size: The smaller of the two.
    """
    return cost(work(8 * size)) / cost(work(size))


LINEAR = 24.0
"""Between 8 and 64, with room for caches that are too small for the larger."""
