"""Admission: how many sequences may be open at once, and when a refused client should return.

Counts on the event loop, so that a burst is refused as it comes and not after the engine has seen
it. Knows nothing of requests but their number.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from server.errors import OverloadedError

_REMEMBERED = 64
MIN_RETRY_AFTER = 1
MAX_RETRY_AFTER = 120


class Ticket:
    """The right to run some sequences; given back once, however often that is said."""

    def __init__(self, admission: Admission, size: int) -> None:
        self._admission = admission
        self._size = size

    @contextmanager
    def kept(self) -> Iterator[Self]:
        """Release the ticket if what is done meanwhile fails; whoever succeeds keeps it."""
        try:
            yield self
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """The sequences have ended."""
        self._admission.leave(self._size)
        self._size = 0


class Admission:
    """Lets sequences in until the queue is full.

    Args:
        limit: Open sequences, running and waiting, beyond which nobody is let in.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._num_open = 0
        self._ends: deque[tuple[float, int]] = deque(maxlen=_REMEMBERED)

    @property
    def num_open(self) -> int:
        """Sequences that were let in and have not ended."""
        return self._num_open

    def enter(self, size: int) -> Ticket:
        """Let `size` sequences in, if the queue is not full yet.

        Raises:
            OverloadedError: It is.
        """
        if self._num_open >= self._limit:
            raise OverloadedError(
                f"The server is busy: {self._num_open} sequences are running or waiting, and the "
                f"limit is {self._limit}. Try again later.",
                retry_after=self._retry_after(),
            )
        self._num_open += size
        return Ticket(self, size)

    def leave(self, size: int) -> None:
        """Count `size` sequences as ended."""
        if size:
            self._num_open -= size
            self._ends.append((time.monotonic(), size))

    def _retry_after(self) -> int:
        """Seconds until a place is free at the rate at which sequences ended lately."""
        if len(self._ends) < 2:
            return MIN_RETRY_AFTER
        elapsed = time.monotonic() - self._ends[0][0]
        ended = sum(size for _, size in self._ends)
        excess = self._num_open - self._limit + 1
        seconds = math.ceil(excess * elapsed / ended)
        return min(max(seconds, MIN_RETRY_AFTER), MAX_RETRY_AFTER)
