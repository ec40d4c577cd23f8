"""ObservedScheduler: a Scheduler that writes down what becomes of each request.

It decides nothing: every decision is Scheduler's, and what came of it goes to a Timeline. A step
lasts from its scheduling to its commit, when its tokens are chosen.
"""

from __future__ import annotations

import time

from cache.manager import KVCacheManager, Region
from server.engine.planning.batch import Batch
from server.engine.planning.pace import Pace
from server.engine.scheduler import Scheduler
from server.engine.timeline import Timeline
from server.request import FinishReason, Request


class ObservedScheduler(Scheduler):
    """A scheduler with a witness.

    Args:
        manager: The books of the cache.
        timeline: Told what happens.
        pace: Of Scheduler.
        limits: Those of Scheduler.
    """

    def __init__(
        self, manager: KVCacheManager, *, timeline: Timeline, pace: Pace, **limits: int
    ) -> None:
        super().__init__(manager, pace=pace, **limits)
        self._timeline = timeline
        self._step_started = 0.0

    def add(self, request: Request) -> None:
        """Let a new request wait for its turn; see Scheduler."""
        super().add(request)
        self._timeline.queued(request)

    def schedule(self) -> Batch | None:
        """Plan the next step; see Scheduler."""
        self._step_started = time.monotonic()
        return super().schedule()

    def commit(self, batch: Batch) -> None:
        """Record that a batch has been computed; see Scheduler."""
        super().commit(batch)
        self._timeline.stepped(batch, started=self._step_started, ended=time.monotonic())

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request; see Scheduler."""
        super().finish(request, reason)
        self._timeline.finished(request, reason, time=time.monotonic())

    def _start(self, request: Request, region: Region) -> None:
        super()._start(request, region)
        self._timeline.admitted(
            request, num_queried=self._num_queried(request), time=self._step_started
        )

    def _preempt(self, victim: Request) -> None:
        super()._preempt(victim)
        self._timeline.preempted(victim, time=self._step_started)

    def _num_queried(self, request: Request) -> int:
        """Tokens that were looked for in the cache; a request that comes back finds its own."""
        shares = request.use_cache and request.prefix_cache and self.manager.prefix_caching
        asked = shares and request.params.prompt_logprobs is None and not request.num_preemptions
        return request.num_prompt_tokens if asked else 0
