"""Drafter: guesses the next tokens of requests that decode; NgramDrafter finds them in their text.

A draft changes nothing but the number of steps: whoever checks it chooses every token as if there
had been none. Owned by the scheduler, on the engine thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from server.engine.drafting.draft_budget import Acceptance, DraftBudget
from server.engine.drafting.ngram_index import NgramIndex
from server.request import Request

MAX_INDEXED_TOKENS = 2048
"""Tokens of all requests that one step takes in: a long prompt takes several."""
Drafts = list[tuple[Request, list[int]]]
"""Requests with the tokens that are expected to follow; those without a guess are left out."""


class Drafter(Protocol):
    """Guesses what requests will say next, and learns how right it was."""

    def propose(self, requests: Sequence[Request]) -> Drafts:
        """Guess the tokens that follow, for some of the requests that decode in this step."""

    def record(self, request: Request, *, drafted: int, accepted: int) -> None:
        """Learn how many of a request's drafted tokens were what it then said."""

    def forget(self, request_id: str) -> None:
        """Drop what is remembered about a request; harmless for one that is unknown."""


def may_draft(request: Request) -> int:
    """How many tokens of a request could be drafted at most: its last token is never a draft's."""
    if not request.use_cache:
        return 0
    return max(0, request.params.max_tokens - request.num_output_tokens - 1)


@dataclass(slots=True)
class _Reader:
    """Draft state of one request: its text, and the acceptance rate of its drafts."""

    index: NgramIndex = field(default_factory=NgramIndex)
    acceptance: Acceptance = field(default_factory=Acceptance)


class NgramDrafter:
    """Prompt look-up: what followed when the text last ended as it does now.

    Args:
        budget: How many tokens a step may draft.
    """

    def __init__(self, budget: DraftBudget) -> None:
        self._budget = budget
        self._readers: dict[str, _Reader] = {}

    def propose(self, requests: Sequence[Request]) -> Drafts:
        """Guess the tokens that follow; see Drafter."""
        self._budget.begin(len(requests))
        drafts: Drafts = []
        left = MAX_INDEXED_TOKENS
        for request in requests:
            reader = self._readers.get(request.request_id)
            if reader is None:
                reader = self._readers[request.request_id] = _Reader()
            before = len(reader.index)
            is_known = reader.index.update(request.token_ids, most=left)
            left -= len(reader.index) - before
            if not is_known:
                continue
            count = min(self._budget.grant(reader.acceptance), may_draft(request))
            if count > 0 and (draft := reader.index.continuation(request.token_ids, count)):
                drafts.append((request, draft))
                self._budget.spend(len(draft))
        return drafts

    def record(self, request: Request, *, drafted: int, accepted: int) -> None:
        """Learn how right a draft was; see Drafter."""
        self._budget.reward(accepted)
        if reader := self._readers.get(request.request_id):
            reader.acceptance.record(drafted=drafted, accepted=accepted)

    def forget(self, request_id: str) -> None:
        """Drop what is remembered about a request; see Drafter."""
        self._readers.pop(request_id, None)
