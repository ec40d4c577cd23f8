"""A device queue whose copies happen as late as they may: when somebody waits for a mark."""

from __future__ import annotations

from torch import Tensor


class SlowQueue:
    """Keeps every copy until a mark behind it is waited for, or the device runs something."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Tensor, Tensor]] = []
        self._count = 0
        self.waits = 0

    def copy(self, target: Tensor, source: Tensor) -> None:
        self._waiting.append((self._count, target, source))

    def mark(self) -> SlowMark:
        self._count += 1
        return SlowMark(self, self._count)

    def run(self, before: int | None = None) -> None:
        """Carry out what was given before a mark, or all."""
        while self._waiting and (before is None or self._waiting[0][0] < before):
            _, target, source = self._waiting.pop(0)
            target.copy_(source)


class SlowMark:
    """A point in a SlowQueue."""

    def __init__(self, queue: SlowQueue, number: int) -> None:
        self._queue = queue
        self._number = number

    def synchronize(self) -> None:
        self._queue.waits += 1
        self._queue.run(before=self._number)


class DirectQueue:
    """Copies at once; there is nothing to wait for."""

    def copy(self, target: Tensor, source: Tensor) -> None:
        target.copy_(source)

    def mark(self) -> DirectQueue:
        return self

    def synchronize(self) -> None:
        pass
