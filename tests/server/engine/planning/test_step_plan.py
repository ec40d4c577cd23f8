"""What one step grants, as its budgets fill up."""

from __future__ import annotations

from server.engine.planning.pace import Pace
from server.engine.planning.step_plan import StepPlan
from server.request import Request, SamplingParams

PACE = Pace(max_stretch=3.0, step_tokens=4.0, context_tokens=10.0)


def request(length: int, *, computed: int = 0) -> Request:
    """A request with so many tokens, some of them computed."""
    made = Request(request_id="r", token_ids=[0] * length, params=SamplingParams(max_tokens=9))
    made.num_computed_tokens = computed
    return made


def take(plan: StepPlan, request: Request) -> None:
    """Schedule what is granted."""
    plan.schedule(request, plan.grant(request))


def test_a_prompt_alone_gets_all() -> None:
    """Without decodes only the budget of tokens counts."""
    plan = StepPlan(32, PACE)
    prompt = request(50)
    assert plan.grant(prompt) == 32
    take(plan, prompt)
    assert plan.is_full


def test_prompts_share_what_the_pace_allows() -> None:
    """Beside a decode prompts get what its step may be stretched by; long contexts cost more."""
    plan = StepPlan(100, PACE)
    take(plan, request(1))
    first, second = request(8), request(60, computed=10)
    assert plan.grant(first) == 8
    assert plan.grant(second) == 5  # of a room of 2 * (4 + 1), at a cost of 2 each
    take(plan, first)
    assert plan.grant(second) == 1
    take(plan, second)
    assert plan.is_full
    assert plan.grant(request(5)) == 0


def test_a_token_too_dear_is_granted_all_the_same() -> None:
    """However much a token costs, a prompt gets on by at least one a step."""
    plan = StepPlan(100, PACE)
    take(plan, request(1))
    distant = request(5000, computed=4000)
    assert plan.grant(distant) == 1
    take(plan, distant)
    assert plan.is_full


def test_a_newcomer_with_one_token_left_is_measured_by_too() -> None:
    """Whose prompt is cached but for a token decodes from the start, and comes before prompts."""
    plan = StepPlan(100, PACE)
    prompt, newcomer = request(60, computed=10), request(5, computed=4)
    take(plan, prompt)
    take(plan, newcomer)
    assert plan.is_full
    batch = plan.to_batch()
    assert batch is not None
    assert [entry.request for entry in batch.scheduled] == [newcomer, prompt]
