"""DraftBudget: how many drafted tokens a step may carry, so that wrong ones cost next to nothing.

A step's cost is counted in tokens, as Pace counts it: what it costs before its first token, and
one more for each token. Drafts live on credit: every step earns a small share of its cost, an
accepted draft earns what a token is worth at this batch, and each drafted token is paid for. So
drafting can never have cost more than that share, whatever the text and however full the batch.
A rule over counts, not over clocks, so that the same requests always make the same steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MAX_DRAFTS_PER_STEP = 32
"""Drafted tokens of all requests in one step."""
MAX_DRAFT_TOKENS = 16
"""Drafted tokens of one request in one step."""
_CHECK_TOKENS = 2.0
"""Measured on a model of 135M parameters: what drafts cost a step beside their rows, in tokens."""
_SHARE = 0.015
"""Of a step's cost, what it earns for drafts that turn out wrong."""
_MOST_CREDIT = 48.0
_LOAN = 16.0
"""How far below nothing drafts that are expected to pay may bring the account."""
_PROBE_CREDIT = 4.0
"""Credit from which on a draft is tried that is not expected to pay."""
_MEMORY = 0.8
"""What an outcome still counts for at the next one."""


@dataclass(slots=True)
class Acceptance:
    """How often the drafts of one request were right of late."""

    hits: float = 0.0
    tries: float = 0.0

    @property
    def rate(self) -> float:
        """The estimated chance, from 0 to 1, that the next drafted token is right."""
        return (self.hits + 1.0) / (self.tries + 2.0)

    def record(self, *, drafted: int, accepted: int) -> None:
        """Learn what became of a draft; what follows its first wrong token was never tried."""
        self.hits = self.hits * _MEMORY + accepted
        self.tries = self.tries * _MEMORY + min(accepted + 1, drafted)


class DraftBudget:
    """The account from which drafted tokens are paid.

    Args:
        step_tokens: What a step costs before its first token, in tokens; see Pace.
        guess_share: What a pass of the model that guesses costs, as a share of the served model's;
            0 where the guesses come from elsewhere.
    """

    def __init__(self, step_tokens: float, *, guess_share: float = 0.0) -> None:
        self._step_tokens = step_tokens
        self._guess_share = guess_share
        self._credit = _PROBE_CREDIT
        self._num_decodes = 1
        self._left = 0
        self._has_drafts = False

    def begin(self, num_decodes: int) -> None:
        """Begin a step in which so many requests decode, at least one."""
        self._num_decodes = num_decodes
        self._has_drafts = False
        self._earn(_SHARE * (self._step_tokens + num_decodes))
        self._left = min(MAX_DRAFTS_PER_STEP, max(0, int(self._credit + _LOAN)))

    def grant(self, acceptance: Acceptance) -> int:
        """How many tokens may be drafted for a request of this step."""
        gain = self._token_worth / self._draft_cost
        rate = acceptance.rate
        # The i-th draft counts only if all before it are right too.
        paying = int(max(0.0, math.log(gain)) / -math.log(rate))
        count = paying or int(self._credit >= _PROBE_CREDIT)
        return min(count, self._left, MAX_DRAFT_TOKENS)

    def spend(self, drafted: int) -> None:
        """Pay for tokens that were drafted for this step."""
        self._left -= drafted
        self._credit -= drafted * self._draft_cost + (0.0 if self._has_drafts else _CHECK_TOKENS)
        self._has_drafts = True

    def reward(self, accepted: int) -> None:
        """Earn what accepted drafts are worth."""
        self._earn(accepted * self._token_worth)

    @property
    def _token_worth(self) -> float:
        """What a step costs for each token it brings without drafts."""
        return 1.0 + self._step_tokens / self._num_decodes

    @property
    def _draft_cost(self) -> float:
        """What one drafted token costs: its row of the step, and its part of the guessing pass."""
        return 1.0 + self._guess_share * self._token_worth

    def _earn(self, amount: float) -> None:
        self._credit = min(self._credit + amount, _MOST_CREDIT)
