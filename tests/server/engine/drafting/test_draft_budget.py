"""DraftBudget: drafted tokens are paid from what drafts have earned, and from a small share."""

from __future__ import annotations

import pytest

from server.engine.drafting.draft_budget import (
    MAX_DRAFT_TOKENS,
    MAX_DRAFTS_PER_STEP,
    Acceptance,
    DraftBudget,
)

STEP_TOKENS = 6.0


def run(*, batch: int, steps: int, rate: float) -> tuple[float, float]:
    """What steps cost with drafts of which a share is right, and without, for as many tokens."""
    budget = DraftBudget(STEP_TOKENS)
    acceptances = [Acceptance() for _ in range(batch)]
    cost = tokens = 0.0
    right = 0.0
    for _ in range(steps):
        budget.begin(batch)
        cost += STEP_TOKENS + batch
        tokens += batch
        for acceptance in acceptances:
            drafted = budget.grant(acceptance)
            if not drafted:
                continue
            budget.spend(drafted)
            accepted = 0
            for _ in range(drafted):
                right += rate
                if right < 1.0:
                    break
                right -= 1.0
                accepted += 1
            budget.reward(accepted)
            acceptance.record(drafted=drafted, accepted=accepted)
            cost += drafted
            tokens += accepted
    return cost, tokens * (STEP_TOKENS + batch) / batch


@pytest.mark.parametrize("batch", [1, 2, 8, 32, 100])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
def test_drafting_in_vain_costs_at_most_the_share(batch: int, rate: float):
    """Over many steps drafts never cost more than 2.5 % beyond what they bring."""
    with_drafts, without = run(batch=batch, steps=2000, rate=rate)
    assert with_drafts <= 1.025 * without


@pytest.mark.parametrize(("batch", "gain"), [(1, 3.5), (8, 1.3), (32, 1.0)])
def test_right_drafts_pay(batch: int, gain: float):
    """A text that foretells itself is written in a fraction of the cost, the fewer the better."""
    with_drafts, without = run(batch=batch, steps=500, rate=1.0)
    assert without >= gain * with_drafts


def test_a_step_carries_a_bounded_number_of_drafts():
    """Neither one request nor all together exceed their limits, however rich the account."""
    budget = DraftBudget(STEP_TOKENS)
    sure = Acceptance(hits=1e6, tries=1e6)
    for _ in range(200):
        budget.begin(4)
        budget.reward(10)
    budget.begin(4)
    grants = []
    for _ in range(4):
        grants.append(budget.grant(sure))
        budget.spend(grants[-1])
    assert max(grants) == MAX_DRAFT_TOKENS
    assert sum(grants) == MAX_DRAFTS_PER_STEP


def test_the_rate_follows_what_happened_of_late():
    """A request whose drafts turn out wrong is soon drafted less, and more again when right."""
    acceptance = Acceptance()
    assert acceptance.rate == 0.5
    for _ in range(20):
        acceptance.record(drafted=4, accepted=4)
    high = acceptance.rate
    for _ in range(20):
        acceptance.record(drafted=4, accepted=0)
    low = acceptance.rate
    for _ in range(20):
        acceptance.record(drafted=4, accepted=4)
    assert low < 0.2
    assert high > 0.8
    assert acceptance.rate == pytest.approx(high, abs=0.01)
