"""StepPlan: the batch of one step while it is put together, and what is left of its budgets.

It says how many tokens a request may have in this step; in which order requests are asked is the
scheduler's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from cache.window import AttentionWindow
from server.engine.planning.batch import Batch, ScheduledRequest
from server.engine.planning.pace import Pace
from server.request import Request


class StepPlan:
    """A batch in the making; those who decode come first, as prompts are measured by them.

    Args:
        max_tokens: Most tokens in the batch.
        pace: How much prompts may add once somebody decodes.
        window: Which tokens stay in the cache, if not all; a chunk ends where it slides.
    """

    def __init__(
        self, max_tokens: int, pace: Pace, *, window: AttentionWindow | None = None
    ) -> None:
        self._single: list[ScheduledRequest] = []
        self._longer: list[ScheduledRequest] = []
        self._tokens_left = max_tokens
        self._pace = pace
        self._window = window
        self._num_decodes = 0
        self._decode_positions = 0
        self._prompts = 0.0

    def __iter__(self) -> Iterator[ScheduledRequest]:
        return chain(self._single, self._longer)

    @property
    def is_full(self) -> bool:
        """Whether no token of a prompt can be added."""
        return self._tokens_left <= 0 or self._time_left <= 0.0

    def grant(self, request: Request) -> int:
        """How many tokens of the request this step can compute."""
        uncomputed = request.num_uncomputed_tokens
        tokens = min(uncomputed, self._tokens_left)
        if self._window is not None:
            tokens = min(tokens, self._window.num_before_slide(request.num_computed_tokens))
        if uncomputed > 1 and self._num_decodes:
            if self._time_left <= 0.0:
                return 0
            cost = self._pace.cost(request.num_computed_tokens)
            return min(tokens, max(1, int(self._time_left / cost)))
        return tokens

    @property
    def only_decodes(self) -> bool:
        """Whether some requests decode, and nobody does anything else."""
        return bool(self._single) and len(self._single) == self._num_decodes and not self._longer

    def draft(self, request: Request, draft: Sequence[int]) -> None:
        """Add as much as fits of a draft to the one token of a request that decodes."""
        draft = draft[: max(0, self._tokens_left)]
        if draft:
            index = next(i for i, one in enumerate(self._single) if one.request is request)
            entry = self._single.pop(index)
            self._longer.append(entry._replace(num_new_tokens=1 + len(draft), draft=draft))
            self._tokens_left -= len(draft)

    def schedule(self, request: Request, count: int) -> None:
        """Add as many tokens as were granted to the batch."""
        start = request.num_computed_tokens
        num_tokens = len(request.token_ids)
        if num_tokens - start > 1:
            self._prompts += count * self._pace.cost(start)
        else:
            self._num_decodes += 1
            self._decode_positions += start
        self._tokens_left -= count
        caught_up = start + count == num_tokens
        samples = caught_up and request.params.max_tokens > 0
        entries = self._single if count == 1 else self._longer
        entries.append(ScheduledRequest(request, start, count, samples))

    def to_batch(self) -> Batch | None:
        """The finished batch, single tokens first; None if it is empty."""
        scheduled = (*self._single, *self._longer)
        return Batch.of(scheduled) if scheduled else None

    @property
    def _time_left(self) -> float:
        """What is left of the step's chunked-prefill budget."""
        decodes = self._pace.cost(self._decode_positions, count=self._num_decodes)
        return self._pace.room(decodes) - self._prompts
