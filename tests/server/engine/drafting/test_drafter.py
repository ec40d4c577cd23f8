"""NgramDrafter: which requests are drafted, and how long."""

from __future__ import annotations

from server.engine.drafting.draft_budget import DraftBudget
from server.engine.drafting.drafter import MAX_INDEXED_TOKENS, NgramDrafter
from server.request import Request, SamplingParams


def request(name: str, tokens: list[int], *, max_tokens: int = 100, **options: bool) -> Request:
    params = SamplingParams(max_tokens=max_tokens)
    return Request(request_id=name, token_ids=list(tokens), params=params, **options)


def drafter() -> NgramDrafter:
    return NgramDrafter(DraftBudget(6.0))


def test_only_texts_that_repeat_are_drafted():
    """A request gets a draft if its last tokens stood in its text before, and else none."""
    repeats = request("a", [1, 2, 3, 4, 1, 2])
    unheard = request("b", [1, 2, 3, 4, 5, 6])
    assert drafter().propose([repeats, unheard]) == [(repeats, [3, 4])]


def test_a_step_takes_in_a_bounded_number_of_tokens():
    """However many long prompts begin to decode together, they share one step's bound."""
    ours, prompt = drafter(), [*range(MAX_INDEXED_TOKENS - 2), 0, 1]
    crowd = [request(str(number), prompt) for number in range(3)]
    found = [[one.request_id for one, _ in ours.propose(crowd)] for _ in range(4)]
    assert found[0] == ["0"]
    assert "1" in found[1]
    assert "2" in found[2]


def test_the_last_token_is_never_drafted():
    """A draft leaves room for the token that is chosen behind it."""
    tokens = [1, 2] * 10
    assert drafter().propose([request("a", tokens, max_tokens=1)]) == []
    two = request("a", tokens, max_tokens=2)
    assert drafter().propose([two]) == [(two, [1])]


def test_a_request_without_a_cache_has_no_drafts():
    """Whoever computes everything anew for each token gets one token a step."""
    assert drafter().propose([request("a", [1, 2] * 10, use_cache=False)]) == []


def test_drafts_that_come_true_grow():
    """The more of its drafts were right, the more tokens a request is granted."""
    one, ours = request("a", [1, 2, 3] * 10, max_tokens=500), drafter()
    lengths = []
    for _ in range(12):
        ((_, draft),) = ours.propose([one])
        lengths.append(len(draft))
        ours.record(one, drafted=len(draft), accepted=len(draft))
        one.token_ids += draft
    assert lengths[0] < lengths[-1]
    assert lengths == sorted(lengths)


def test_what_is_forgotten_starts_anew():
    """Nothing is kept of a request that has ended."""
    ours, one = drafter(), request("a", [1, 2, 3] * 10)
    ours.propose([one])
    ours.forget("a")
    ours.forget("a")
    assert ours.propose([request("a", [4, 5, 6])]) == []
