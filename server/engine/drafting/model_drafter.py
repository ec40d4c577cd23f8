"""ModelDrafter: a smaller model of the same vocabulary guesses what the served one will say.

It has an executor, a pool and the books of one of its own, and follows its requests' texts a step
behind: what they said is computed in one chunk, then one token after the other is guessed, for all
of them together. A guess uses the random number that its request will use for that token, so that
two models that agree choose the same. Owned by the scheduler, on the engine thread.
Source: Leviathan et al. 2023, https://arxiv.org/abs/2211.17192 (the idea; what is accepted here is
only what the served model chooses itself).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from cache.manager import KVCacheManager, Region
from model.executors.executor import Executor, FlatBatch
from server.engine.drafting.draft_budget import Acceptance, DraftBudget
from server.engine.drafting.drafter import Drafts, may_draft
from server.engine.sampler import Sampler
from server.request import NO_BIAS, Request, SamplingParams

MAX_CATCH_UP_TOKENS = 256
"""Tokens of all requests that one step computes behind them: a long prompt takes several."""


@dataclass(slots=True)
class _Follower:
    """One request as the smaller model knows it."""

    guess: Request
    """Its text with the tokens guessed last, and as much of its parameters as guessing needs."""
    region: Region
    num_computed: int
    acceptance: Acceptance = field(default_factory=Acceptance)

    def catch_up(self, token_ids: Sequence[int]) -> int:
        """Take over what the request said; what was guessed otherwise counts as not computed.

        Returns:
            How many tokens are to be computed before the next can be guessed.
        """
        guessed = self.guess.token_ids
        known = min(self.num_computed, len(token_ids) - 1)
        agree = self.guess.num_prompt_tokens
        while agree < min(len(guessed), len(token_ids)) and guessed[agree] == token_ids[agree]:
            agree += 1
        del guessed[agree:]
        guessed += token_ids[agree:]
        self.num_computed = min(known, agree)
        self.guess.num_prompt_tokens = len(token_ids)  # where the next guesses begin
        return len(token_ids) - self.num_computed


class ModelDrafter:
    """Guesses by a model that is smaller than the one that is served; see Drafter.

    Args:
        executor: Runs the smaller model, a pass of as many requests and tokens as the served one.
        manager: The books of its pool.
        sampler: Chooses among its logits.
        budget: How many tokens a step may draft.
    """

    def __init__(
        self, executor: Executor, manager: KVCacheManager, sampler: Sampler, *, budget: DraftBudget
    ) -> None:
        self._executor = executor
        self._manager = manager
        self._sampler = sampler
        self._budget = budget
        self._followers: dict[str, _Follower] = {}

    def propose(self, requests: Sequence[Request]) -> Drafts:
        """Guess the tokens that follow; see Drafter."""
        self._budget.begin(len(requests))
        wanted: list[tuple[Request, _Follower, int]] = []
        left = MAX_CATCH_UP_TOKENS
        for request in requests:
            follower = self._follower(request)
            if follower is None:
                continue
            count = min(self._budget.grant(follower.acceptance), may_draft(request))
            room = len(request.token_ids) + count
            if count < 1 or left < 1 or not self._manager.extend(follower.region, room):
                continue
            missing = follower.catch_up(request.token_ids)
            if missing > left:
                count = 0  # only a part of it can be computed now
            else:
                self._budget.spend(count)
            left -= min(missing, left)
            wanted.append((request, follower, count))
        self._guess([(follower, count) for _, follower, count in wanted])
        drafts = [
            (request, follower.guess.token_ids[len(request.token_ids) :])
            for request, follower, _ in wanted
        ]
        return [(request, draft) for request, draft in drafts if draft]

    def record(self, request: Request, *, drafted: int, accepted: int) -> None:
        """Learn how right a draft was; see Drafter."""
        self._budget.reward(accepted)
        if follower := self._followers.get(request.request_id):
            follower.acceptance.record(drafted=drafted, accepted=accepted)

    def forget(self, request_id: str) -> None:
        """Drop what is remembered about a request; see Drafter."""
        if follower := self._followers.pop(request_id, None):
            self._manager.release(follower.region)
            self._sampler.forget(request_id)

    def _follower(self, request: Request) -> _Follower | None:
        """Who follows a request; None while there is no room for one, or no use."""
        follower = self._followers.get(request.request_id)
        if follower is not None or not may_draft(request):
            return follower
        region = self._manager.allocate(
            request.token_ids, salt=request.cache_salt, use_prefix=request.prefix_cache
        )
        if region is None:
            return None
        guess = Request(
            request_id=request.request_id,
            token_ids=list(request.token_ids),
            params=_guessing(request.params),
            choice=request.choice,
        )
        follower = _Follower(guess, region, num_computed=region.num_cached_tokens)
        self._followers[request.request_id] = follower
        return follower

    def _guess(self, wanted: list[tuple[_Follower, int]]) -> None:
        """Guess as many tokens as are wanted for each, one a pass for all together."""
        self._pass(wanted, most=MAX_CATCH_UP_TOKENS)
        for follower, _ in wanted:
            computed = min(follower.num_computed, follower.guess.num_prompt_tokens)
            self._manager.commit(follower.region, follower.guess.token_ids, computed)
        depth = 1
        while deeper := [(one, count) for one, count in wanted if count > depth]:
            self._pass(deeper, most=len(deeper))
            depth += 1

    def _pass(self, followers: list[tuple[_Follower, int]], *, most: int) -> None:
        """Compute what is not computed yet, at most so many tokens; choose where that is all."""
        chunks: list[tuple[_Follower, int]] = []
        for follower, _ in followers:
            count = min(len(follower.guess.token_ids) - follower.num_computed, most)
            most -= count
            if count:
                chunks.append((follower, count))
        if not chunks:
            return
        chunks.sort(key=lambda chunk: chunk[1] > 1)  # single tokens first
        batch, choosing = _flat_batch(chunks, {id(one) for one, count in followers if count})
        self._executor.prepare(batch)
        logits: Tensor = self._executor.submit(batch).result().logits
        for follower, count in chunks:
            follower.num_computed += count
        sampled = self._sampler.sample(
            logits[: len(choosing)], [follower.guess for follower in choosing]
        )
        for row, follower in enumerate(choosing):
            if row not in sampled.failed:
                follower.guess.token_ids.append(sampled.token_ids[row])


def _flat_batch(
    chunks: list[tuple[_Follower, int]], choosing: set[int]
) -> tuple[FlatBatch, list[_Follower]]:
    """The next tokens of some followers, and whose next one is chosen behind them."""
    input_ids: list[int] = []
    sample_rows: list[int] = []
    chosen: list[_Follower] = []
    for follower, count in chunks:
        start, token_ids = follower.num_computed, follower.guess.token_ids
        input_ids += token_ids[start : start + count]
        if id(follower) in choosing and start + count == len(token_ids):
            chosen.append(follower)
            sample_rows.append(len(input_ids) - 1)
    batch = FlatBatch(
        input_ids=input_ids,
        starts=[follower.num_computed for follower, _ in chunks],
        query_lengths=tuple(count for _, count in chunks),
        regions=[follower.region for follower, _ in chunks],
        sample_rows=sample_rows,
    )
    return batch, chosen


def _guessing(params: SamplingParams) -> SamplingParams:
    """The parameters that say how a token is drawn, without what depends on the text before it."""
    return replace(
        params,
        min_tokens=0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
        logit_bias=NO_BIAS,
        allowed_token_ids=(),
        bad_words=(),
        logprobs=None,
        prompt_logprobs=None,
    )
