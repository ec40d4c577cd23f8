"""Workers: the threads that do what would keep the event loop, each kind of work in its own place.

Reading short bodies, reading long ones and compiling have threads apart, so that none waits for
another kind. What waits is bounded and refused beyond that; what nobody waits for any more is not
begun. The threads are daemons: the process ends whatever they do. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from server.errors import OverloadedError

Result = TypeVar("Result")
LONG_BYTES = 262_144
"""A body from which on its reading, rendering and tokenising is long work."""
_RETRY_SECONDS = 5


@dataclass(frozen=True, slots=True)
class _Work:
    run: Callable[[], Any]
    done: asyncio.Future[Any]
    context: contextvars.Context


class Pool:
    """A few threads for one kind of work, made when they are first needed.

    Args:
        name: What they do, for error messages and the names of the threads.
        size: How many there are.
        limit: Pieces of work, running and waiting, beyond which more is refused.
    """

    def __init__(self, name: str, *, size: int, limit: int) -> None:
        self._name = name
        self._size = size
        self._limit = limit
        self._queue: queue.SimpleQueue[_Work] = queue.SimpleQueue()
        self._num_threads = 0
        self._num_open = 0

    @property
    def num_open(self) -> int:
        """Pieces of work that wait or run."""
        return self._num_open

    async def run(self, work: Callable[[], Result]) -> Result:
        """Do something in a thread; if the caller is cancelled before it begins, it never does.

        Raises:
            OverloadedError: Too much waits already.
            Exception: Whatever `work` raised.
        """
        if self._num_open >= self._limit:
            raise OverloadedError(
                f"The server is busy: {self._num_open} requests wait to be {self._name}, and the "
                f"limit is {self._limit}. Try again later.",
                retry_after=_RETRY_SECONDS,
            )
        done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._num_open += 1
        self._queue.put(_Work(work, done, contextvars.copy_context()))
        if self._num_threads < min(self._size, self._num_open):
            self._num_threads += 1
            name = f"{self._name}-{self._num_threads}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        return await done

    def _serve(self) -> None:
        """Do one piece of work after the other, in a thread."""
        while True:
            work = self._queue.get()
            result, error = None, None
            if not work.done.cancelled():
                try:
                    result = work.context.run(work.run)
                except BaseException as raised:  # noqa: BLE001 - whoever waits for it gets it
                    error = raised
            try:
                work.done.get_loop().call_soon_threadsafe(self._settle, work.done, result, error)
            except RuntimeError:  # the loop has ended, and nobody waits any more
                return
            del work, result, error  # a thread that waits keeps nothing alive

    def _settle(
        self, done: asyncio.Future[Any], result: object, error: BaseException | None
    ) -> None:
        """Answer whoever still waits."""
        self._num_open -= 1
        if done.done():
            return
        if error is not None:
            done.set_exception(error if isinstance(error, Exception) else _as_exception(error))
        else:
            done.set_result(result)


class Workers:
    """The pools of a server.

    Args:
        limit: Requests that may wait for each.
    """

    def __init__(self, limit: int) -> None:
        self._short = Pool("read", size=2, limit=limit)
        self._long = Pool("read at length", size=1, limit=limit)
        self.writing = Pool("written", size=1, limit=limit)
        """For long answers."""
        self.compiling = Pool("compiled", size=1, limit=min(limit, MAX_COMPILING))
        """For grammars, which take seconds."""

    def reading(self, num_bytes: int) -> Pool:
        """Where a body of this length is read, rendered and tokenised."""
        return self._long if num_bytes > LONG_BYTES else self._short


MAX_COMPILING = 64
"""Requests whose grammars wait to be compiled, one after the other."""


def _as_exception(error: BaseException) -> Exception:
    """What a future may hold, of what a native library threw."""
    return RuntimeError(f"{type(error).__name__}: {error}")
