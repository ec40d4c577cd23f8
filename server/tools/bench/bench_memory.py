"""How fast this machine's memory can be read: the limit of decoding, which reads every weight.

Measured by running an operation that does next to nothing over an array far larger than any
cache, on as many threads as the model uses; the fastest of two ways and several tries counts.
A reading in a bad moment is too low, so a run takes one in every turn and goes by the best.
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


class Bandwidth:
    """Read bandwidth, measured again and again.

    Args:
        threads: That read at once.
        num_bytes: Size of the array.
        clock: Seconds.
    """

    def __init__(
        self,
        *,
        threads: int,
        num_bytes: int = ARRAY_BYTES,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.readings: list[float] = []
        """Bytes a second."""
        self._threads = threads
        self._clock = clock
        # Written, as untouched pages are all one.
        self._array = np.ones(num_bytes // 8, dtype=np.uint64)

    @property
    def best(self) -> float:
        """The limit: the fastest reading."""
        return max(self.readings)

    def read(self, *, repeats: int = 2) -> None:
        """Take a reading: the fastest of so many tries of each way."""
        parts = np.array_split(self._array, self._threads)
        tensor = torch.from_numpy(self._array.view(np.float32))
        with ThreadPoolExecutor(self._threads) as pool:
            ways: tuple[Callable[[], object], ...] = (
                lambda: list(pool.map(np.bitwise_or.reduce, parts)),
                tensor.sum,
            )
            seconds = min(self._seconds(way) for _ in range(repeats) for way in ways)
        self.readings.append(self._array.nbytes / seconds)

    def _seconds(self, work: Callable[[], object]) -> float:
        started = self._clock()
        work()
        return self._clock() - started
