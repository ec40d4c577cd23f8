"""Batch: what one step computes, request by request.

Plain data between the scheduler, which makes it, and the runner, which lays it out in rows. It
decides nothing and is never changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from server.request import Request, RequestStatus


class ScheduledRequest(NamedTuple):
    """One request's part of a batch: its tokens [start, start + num_new_tokens)."""

    request: Request
    start: int
    num_new_tokens: int
    samples: bool
    """Whether the last of its known tokens is among these, so that the next is chosen."""
    draft: Sequence[int] = ()
    """Tokens guessed to follow the last known one; the last of the new tokens."""

    @property
    def num_known_tokens(self) -> int:
        """New tokens that are not drafted."""
        return self.num_new_tokens - len(self.draft)

    @property
    def stop(self) -> int:
        """The position behind the last new token that is known: what the step surely computes."""
        return self.start + self.num_known_tokens


@dataclass(slots=True)
class CheckedDraft:
    """A draft while it is compared with what its request says."""

    request: Request
    draft: Sequence[int]
    first_row: int
    """Which of the step's logits foretell what follows the first drafted token."""
    num_accepted: int = 0

    @property
    def came_true(self) -> bool:
        """Whether the next drafted token is what the request has just said."""
        return (
            self.request.status is RequestStatus.RUNNING
            and self.num_accepted < len(self.draft)
            and self.request.token_ids[-1] == self.draft[self.num_accepted]
        )


class Batch(NamedTuple):
    """Flat, ragged batch of one step; the requests with a single new token come first."""

    scheduled: tuple[ScheduledRequest, ...]
    query_lengths: tuple[int, ...]
    """How many new tokens each request has."""
    sampling_requests: list[Request]
    """Those whose next token is chosen after this step."""
    sample_rows: list[int]
    """The rows of the flat batch whose logits choose those tokens, in the same order, and behind
    them the rows of drafted tokens."""
    drafts: list[CheckedDraft]
    """The drafts among them."""

    @classmethod
    def of(cls, scheduled: tuple[ScheduledRequest, ...]) -> Batch:
        """The batch of these parts, which are in order."""
        query_lengths, sampling_requests, sample_rows, row = [], [], [], -1
        drafted: list[tuple[Request, Sequence[int], int]] = []
        for request, _, num_new_tokens, samples, draft in scheduled:
            query_lengths.append(num_new_tokens)
            row += num_new_tokens
            if samples:
                sampling_requests.append(request)
                sample_rows.append(row - len(draft))
            if draft:
                drafted.append((request, draft, row))
        drafts = []
        for request, draft, last_row in drafted:
            drafts.append(CheckedDraft(request, draft, len(sample_rows)))
            sample_rows += range(last_row - len(draft) + 1, last_row + 1)
        return cls(scheduled, tuple(query_lengths), sampling_requests, sample_rows, drafts)

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
