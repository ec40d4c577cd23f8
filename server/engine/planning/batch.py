"""Batch: what one step computes, request by request.

Plain data between the scheduler, which makes it, and the runner, which lays it out in rows. It
decides nothing and is never changed.
"""

from __future__ import annotations

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


class Batch(NamedTuple):
    """What one step computes; the requests with a single new token come first."""

    scheduled: tuple[ScheduledRequest, ...]
    query_lengths: tuple[int, ...]
    """How many new tokens each request has."""
    sampling_requests: list[Request]
    """Those whose next token is chosen after this step."""
    sample_rows: list[int]
    """The rows of the flat batch whose logits choose those tokens, in the same order."""

    @classmethod
    def of(cls, scheduled: tuple[ScheduledRequest, ...]) -> Batch:
        """The batch of these parts, which are in order."""
        query_lengths, sampling_requests, sample_rows, row = [], [], [], -1
        for request, _, num_new_tokens, samples in scheduled:
            query_lengths.append(num_new_tokens)
            row += num_new_tokens
            if samples:
                sampling_requests.append(request)
                sample_rows.append(row)
        return cls(scheduled, tuple(query_lengths), sampling_requests, sample_rows)

    @property
    def num_tokens(self) -> int:
        """New tokens of all requests, N."""
        return sum(self.query_lengths)

    @property
    def num_decodes(self) -> int:
        """How many leading requests have exactly one new token."""
        return self.query_lengths.count(1)

    @property
    def first_rows(self) -> list[int]:
        """The row of each request's first new token in the flat batch."""
        return list(accumulate(self.query_lengths[:-1], initial=0))
