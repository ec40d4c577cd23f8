"""Batch: what one step computes, request by request.

Plain data between the scheduler, which makes it, and the runner, which lays it out in rows. It
decides nothing and is never changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from server.request import Request


class ScheduledRequest(NamedTuple):
    """One request's part of a batch: its tokens [start, start + num_new_tokens)."""

    request: Request
    start: int
    num_new_tokens: int
    samples: bool
    """Whether the last of these tokens is the last known one, so that the next is chosen."""

    @property
    def stop(self) -> int:
        """The position behind the last new token: what is computed once the step is done."""
        return self.start + self.num_new_tokens


@dataclass(frozen=True)
class Batch:
    """What one step computes; the requests with a single new token come first."""

    scheduled: tuple[ScheduledRequest, ...]

    @cached_property
    def num_tokens(self) -> int:
        """New tokens of all requests, N."""
        return sum([entry.num_new_tokens for entry in self.scheduled])

    @cached_property
    def num_decodes(self) -> int:
        """How many leading requests have exactly one new token."""
        return [entry.num_new_tokens for entry in self.scheduled].count(1)

    @cached_property
    def first_rows(self) -> list[int]:
        """The row of each request's first new token in the flat batch."""
        return list(accumulate([e.num_new_tokens for e in self.scheduled[:-1]], initial=0))

    @cached_property
    def sampling(self) -> list[ScheduledRequest]:
        """The parts of the requests whose next token is chosen after this step."""
        return [entry for entry in self.scheduled if entry.samples]

    @cached_property
    def sampling_requests(self) -> list[Request]:
        """Those requests."""
        return [entry.request for entry in self.sampling]

    @cached_property
    def sample_rows(self) -> list[int]:
        """The rows whose logits choose those tokens, in the same order."""
        return [
            row + entry.num_new_tokens - 1
            for row, entry in zip(self.first_rows, self.scheduled, strict=True)
            if entry.samples
        ]
