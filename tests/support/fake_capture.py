"""Captures as a device does: a replay is what was captured, with the numbers that lie there now."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from slow_device import SlowQueue

from model.cuda.graphs import Captured

Output = TypeVar("Output", bound=tuple)


class FakeCapture:
    """Keeps the first body of a form, with all that it closes over, and runs it at each replay.

    Args:
        queue: What the device has yet to do before it comes to a replay.
    """

    def __init__(self, queue: SlowQueue | None = None) -> None:
        self._queue = queue
        self.num_captured = 0
        self.num_replayed = 0

    def __call__(self, body: Callable[[], Output]) -> Captured[Output]:
        self.num_captured += 1
        static = body()

        def replay() -> None:
            self.num_replayed += 1
            if self._queue is not None:
                self._queue.run()
            for target, source in zip(static, body(), strict=True):
                target.copy_(source)

        return Captured(replay, static)
