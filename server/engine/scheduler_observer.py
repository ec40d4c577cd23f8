"""SchedulerObserver and TimelineObserver: who is told what a scheduler decides.

An observer decides nothing and changes nothing. A step lasts from its scheduling to its commit,
when its tokens are chosen.
"""

from __future__ import annotations

import time
from typing import Protocol

from server.engine.planning.batch import Batch, CheckedDraft
from server.engine.timeline import Timeline
from server.request import FinishReason, Request


class SchedulerObserver(Protocol):
    """Told of each decision once it is carried out, in the engine thread."""

    def scheduling(self) -> None:
        """A step begins."""

    def queued(self, request: Request) -> None:
        """A request waits for its turn."""

    def admitted(self, request: Request) -> None:
        """A request got its region."""

    def preempted(self, request: Request) -> None:
        """A request lost its region."""

    def stepped(self, batch: Batch) -> None:
        """A step was computed and its tokens are chosen."""

    def checked(self, draft: CheckedDraft) -> None:
        """A draft was compared with what its request says."""

    def finished(self, request: Request, reason: FinishReason) -> None:
        """A request ended."""


class TimelineObserver:
    """A SchedulerObserver that writes to a Timeline, with the time of each event.

    Args:
        timeline: Where it goes.
        prefix_caching: Whether the scheduler's manager looks for cached beginnings.
    """

    def __init__(self, timeline: Timeline, *, prefix_caching: bool) -> None:
        self._timeline = timeline
        self._prefix_caching = prefix_caching
        self._step_started = 0.0

    def scheduling(self) -> None:
        """Note when the step began."""
        self._step_started = time.monotonic()

    def queued(self, request: Request) -> None:
        """Write down that a request waits."""
        self._timeline.queued(request)

    def admitted(self, request: Request) -> None:
        """Write down that a request got its region."""
        self._timeline.admitted(
            request, num_queried=self._num_queried(request), time=self._step_started
        )

    def preempted(self, request: Request) -> None:
        """Write down that a request lost its region."""
        self._timeline.preempted(request, time=self._step_started)

    def stepped(self, batch: Batch) -> None:
        """Write down what a step computed, and how long it took."""
        self._timeline.stepped(batch, started=self._step_started, ended=time.monotonic())

    def checked(self, draft: CheckedDraft) -> None:
        """Write down how much of a draft came true."""
        self._timeline.checked(draft.request, drafted=len(draft.draft), accepted=draft.num_accepted)

    def finished(self, request: Request, reason: FinishReason) -> None:
        """Write down that a request ended."""
        self._timeline.finished(request, reason, time=time.monotonic())

    def _num_queried(self, request: Request) -> int:
        """Tokens that were looked for in the cache; a request that comes back finds its own."""
        shares = request.use_cache and request.prefix_cache and self._prefix_caching
        asked = shares and request.params.prompt_logprobs is None and not request.num_preemptions
        return request.num_prompt_tokens if asked else 0
