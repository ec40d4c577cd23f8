"""How fast this machine's memory can be read: the limit of decoding, which reads every weight.

Measured by running an operation that does next to nothing over an array far larger than any
cache, on as many threads as the model uses; the fastest of two ways and several tries counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

ARRAY_BYTES = 512 * 2**20
HOW = "the fastest of NumPy's bitwise_or (a part for each thread) and torch's sum over 512 MiB"

Clock = Callable[[], float]


def read_bandwidth(
    *,
    threads: int,
    num_bytes: int = ARRAY_BYTES,
    repeats: int = 5,
    clock: Clock = time.perf_counter,
) -> float:
    """Measure it.

    Args:
        threads: That read at once.
        num_bytes: Size of the array.
        repeats: Tries of each way.
        clock: Seconds.

    Returns:
        Bytes a second.
    """
    array = np.ones(num_bytes // 8, dtype=np.uint64)  # written, as untouched pages are all one
    parts = np.array_split(array, threads)
    tensor = torch.from_numpy(array.view(np.float32))
    with ThreadPoolExecutor(threads) as pool:
        ways: tuple[Callable[[], object], ...] = (
            lambda: list(pool.map(np.bitwise_or.reduce, parts)),
            tensor.sum,
        )
        seconds = min(_seconds(way, clock) for _ in range(repeats) for way in ways)
    return array.nbytes / seconds


def _seconds(work: Callable[[], object], clock: Clock) -> float:
    started = clock()
    work()
    return clock() - started
