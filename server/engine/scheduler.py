"""Scheduler: what each step computes, who may start, who must give way, who is freed.

It deals in requests and counts of tokens; it never sees a tensor. The engine thread owns it, with
the cache's manager and every request added to it. `_release` is the only place where a Region is
freed: finish, abort and preemption all pass there.

There is no prefill phase: a request only has tokens not yet computed, and the scheduler lets it
catch up. Chunked prefill, prefix reuse, recomputation after preemption and decoding are one rule:

    token_ids   [ prompt ............................ | generated ....... ]
    computed    [ cached by others | own chunks ..... ]
                                    step's tokens ---> [ as many as the budget allows ]

A request that reaches its last known token gets the next one chosen; then it has one token not yet
computed, which is decoding. A request that is preempted keeps all its tokens and has none computed,
so it catches up over prompt and generated tokens alike, mostly from the prefix cache.
"""

from __future__ import annotations

from bisect import insort_left, insort_right
from collections import Counter

from cache.manager import KVCacheManager, Region
from cache.window import AttentionWindow
from server.engine.drafting.drafter import Drafter, Drafts
from server.engine.planning.batch import Batch, CheckedDraft
from server.engine.planning.pace import Pace
from server.engine.planning.step_plan import StepPlan
from server.engine.scheduler_observer import SchedulerObserver
from server.request import FinishReason, Request, RequestStatus


class Scheduler:
    """Waiting and running requests, both in order of priority, then arrival.

    The whole of a request's known tokens gets its blocks at admission, though they may be computed
    over many steps: so a prompt once begun is never preempted for want of its own next chunk, and
    only decoding grows. Within one priority, those who came first are served first, and who runs
    last in that order gives way first; the first always proceeds, so every request ends.

    Args:
        manager: The books of the cache.
        max_num_seqs: Requests that may run at once.
        max_num_batched_tokens: Tokens in one step.
        max_model_len: Tokens of prompt and output together that a request may reach.
        pace: How much catching up may add to a step in which other requests decode, so that a
            long prompt does not stall their streams.
        window: Which tokens of a request stay in the cache; None is all of them.
        observer: Told of every decision; None is nobody.
        drafter: What guesses the tokens of requests that decode; None decodes one token a step.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        pace: Pace = Pace(),  # noqa: B008 - it cannot be changed
        window: AttentionWindow | None = None,
        observer: SchedulerObserver | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        self.manager = manager
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_model_len = max_model_len
        self._pace = pace
        self._window = window
        self._observer = observer
        self.drafter = drafter
        """Guesses tokens; `kvserve verify` puts one of its own here."""
        self._requests: dict[str, Request] = {}
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        self.num_preemptions = 0
        """Preemptions since the start."""
        self.num_finished: Counter[FinishReason] = Counter()
        """Requests that ended since the start, by reason."""

    @property
    def num_waiting(self) -> int:
        """Requests that hold no part of the cache yet, or no longer."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests that hold a part of the cache."""
        return len(self._running)

    @property
    def has_work(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._requests)

    @property
    def requests(self) -> tuple[Request, ...]:
        """All requests that have not ended, in the order they were added."""
        return tuple(self._requests.values())

    def add(self, request: Request) -> None:
        """Let a new request wait for its turn.

        Raises:
            ValueError: It could never run, or its id is in use; nothing has changed.
        """
        self._check_admissible(request)
        self._requests[request.request_id] = request
        insort_right(self._waiting, request, key=_rank)
        if self._observer:
            self._observer.queued(request)

    def schedule(self) -> Batch | None:
        """Plan the next step: running requests first, then as many newcomers as fit.

        Returns:
            The batch to compute, to be followed by `commit`; None if there is nothing to do.
        """
        if self._observer:
            self._observer.scheduling()
        self._make_room()
        step = StepPlan(self._max_num_batched_tokens, self._pace, window=self._window)
        decoding: list[Request] = []
        catching_up: list[Request] = []
        for request in self._running:
            decodes = len(request.token_ids) - request.num_computed_tokens == 1
            (decoding if decodes else catching_up).append(request)
        # Nobody starts, and nothing is drafted, without a token for all who run.
        for request in decoding:
            step.schedule(request, 1)
        for request in catching_up:
            if (count := step.grant(request)) > 0:
                step.schedule(request, count)
        if self._waiting:
            self._admit(step)
        if self.drafter is not None and step.only_decodes:
            self._add_drafts(step, self.drafter.propose(decoding))
        return step.to_batch()

    def commit(self, batch: Batch) -> None:
        """Record that a batch has been computed; call it before its requests are finished.

        Of drafted tokens nothing is recorded yet: see `accept`.
        """
        block_size = self.manager.block_size
        for request, start, num_new_tokens, samples, draft in batch.scheduled:
            if request.region is None:  # it was aborted meanwhile
                continue
            request.num_drafted_tokens += len(draft)
            stop = start + num_new_tokens - len(draft)
            request.num_computed_tokens = stop
            request.region.num_stale_tokens = 0
            if request.use_cache:
                is_whole = request.region.num_dropped_tokens == 0
                if is_whole and start // block_size < stop // block_size:  # a block is full
                    self.manager.commit(request.region, request.token_ids, stop)
            elif samples:
                # The next token starts over; no block of the region is shared.
                request.num_computed_tokens = request.region.num_dropped_tokens = 0
        if self._observer:
            self._observer.stepped(batch)

    def accept(self, draft: CheckedDraft) -> None:
        """Record that a drafted token came true, so that it is computed already."""
        request, block_size = draft.request, self.manager.block_size
        assert request.region is not None, "a request that runs has a region"
        draft.num_accepted += 1
        request.num_accepted_tokens += 1
        request.num_computed_tokens += 1
        is_whole = request.region.num_dropped_tokens == 0
        if is_whole and request.num_computed_tokens % block_size == 0:
            self.manager.commit(request.region, request.token_ids, request.num_computed_tokens)

    def settle(self, draft: CheckedDraft) -> None:
        """Learn what came of a draft. What was written of the rest will be written over."""
        assert self.drafter is not None, "it made the draft"
        if self._observer:
            self._observer.checked(draft)
        self.drafter.record(draft.request, drafted=len(draft.draft), accepted=draft.num_accepted)

    def halve_steps(self) -> None:
        """Let steps have half as many tokens, but no fewer than requests that may run at once."""
        half = self._max_num_batched_tokens // 2
        self._max_num_batched_tokens = max(self._max_num_seqs, half, 1)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request, running or waiting, and free its part of the cache."""
        assert request.status is not RequestStatus.FINISHED, f"{request.request_id} ended before"
        queue = self._running if request.status is RequestStatus.RUNNING else self._waiting
        queue.remove(request)
        del self._requests[request.request_id]
        self._release(request, RequestStatus.FINISHED)
        self.num_finished[reason] += 1
        if self._observer:
            self._observer.finished(request, reason)
        if self.drafter is not None:
            self.drafter.forget(request.request_id)

    def abort(self, request_id: str) -> Request | None:
        """End a request in whatever state; None if it is unknown or has ended already."""
        request = self._requests.get(request_id)
        if request is not None:
            self.finish(request, FinishReason.ABORT)
        return request

    def _make_room(self) -> None:
        """Give a block to each request whose last token has none yet, taking those of the last.

        They all decode: who catches up had its blocks at admission. With a window, a request that
        has filled it gives up its oldest blocks for new ones, be it decoding or catching up.
        """
        wanting = [
            (request, request.region)
            for request in self._running
            if request.region and self._wants_room(request, request.region)
        ]
        for request, region in wanting:
            # It may have given way itself, be it to one before it or for want of any behind it.
            while request.region is region:
                if self._grow(request, region):
                    break
                self._preempt(self._running[-1])

    def _wants_room(self, request: Request, region: Region) -> bool:
        """Whether the next token of a running request has no block."""
        if region.capacity < self._held(len(request.token_ids)):
            return True
        return self._num_dropped(request) > region.num_dropped_tokens

    def _grow(self, request: Request, region: Region) -> bool:
        """Give it one; False, and nothing changed, if there is none."""
        num_dropped = self._num_dropped(request)
        if self._window is None or num_dropped == region.num_dropped_tokens:
            return self.manager.extend(region, self._held(len(request.token_ids)))
        successor = self.manager.slide(region, self._window, num_dropped=num_dropped)
        if successor is None:
            return False
        request.region = successor
        return True

    def _held(self, num_tokens: int) -> int:
        """How many of a request's tokens are in the cache at once."""
        return num_tokens if self._window is None else min(num_tokens, self._window.capacity)

    def _num_dropped(self, request: Request) -> int:
        """How many of its tokens the next one to be computed sees no more."""
        return 0 if self._window is None else self._window.num_dropped(request.num_computed_tokens)

    def _add_drafts(self, step: StepPlan, drafts: Drafts) -> None:
        """Let requests of a step compute what is guessed to follow, where there is room for it."""
        for request, draft in drafts:
            region = request.region
            assert region is not None, "whoever decodes has a region"
            known = len(request.token_ids) - region.num_dropped_tokens
            if self._window is not None:  # what is guessed must see what the last token sees
                position = request.num_computed_tokens
                draft = draft[: self._window.num_before_slide(position) - 1]  # noqa: PLW2901
            # Nobody gives way for a draft, nor does it take the block that another may need next.
            if self.manager.num_free_blocks > len(self._running):
                self.manager.extend(region, known + len(draft))
            step.draft(request, draft[: region.capacity - known])

    def _preempt(self, victim: Request) -> None:
        """Take a running request's blocks; it keeps its tokens and waits ahead of its equals."""
        self._running.remove(victim)
        self._release(victim, RequestStatus.WAITING)
        victim.num_preemptions += 1
        self.num_preemptions += 1
        insort_left(self._waiting, victim, key=_rank)
        if self._observer:
            self._observer.preempted(victim)

    def _admit(self, step: StepPlan) -> None:
        """Start waiting requests in order, until one of them does not fit."""
        while self._waiting and len(self._running) < self._max_num_seqs:
            request = self._waiting[0]
            # Starting only in a step with room for all who run and one more token keeps those who
            # decode within the budget for good, however many seats there are.
            if step.is_full or self._prefix_is_coming(request, step):
                return
            region = self.manager.allocate(
                request.token_ids[: self._held(len(request.token_ids))],
                num_tokens=self._held(_room(request)),
                salt=request.cache_salt,
                use_prefix=_may_share(request),
                # A block for each running request to grow by: a newcomer must not start by
                # having somebody preempted. With nobody running, everything may be taken.
                reserve=len(self._running),
            )
            if region is None:
                return
            self._waiting.pop(0)
            self._start(request, region)
            step.schedule(request, step.grant(request))

    def _start(self, request: Request, region: Region) -> None:
        """Let a request run in its region."""
        insort_right(self._running, request, key=_rank)
        request.status = RequestStatus.RUNNING
        request.region = region
        request.num_computed_tokens = region.num_cached_tokens
        if request.num_preemptions == 0:
            request.num_cached_tokens = region.num_cached_tokens
        if self._observer:
            self._observer.admitted(request)

    def _prefix_is_coming(self, request: Request, step: StepPlan) -> bool:
        """Whether someone in this step is about to compute the next block `request` could share.

        Then it waits for the next step, and with it those behind: equal prompts that arrive
        together are computed once. It cannot wait for ever: whoever is in a step gets on, and who
        has passed that block is waited for no longer.
        """
        if not (self.manager.prefix_caching and _may_share(request)):
            return False
        tokens = request.token_ids[: self._held(len(request.token_ids))]
        found = self.manager.num_matching_tokens(tokens, salt=request.cache_salt)
        stop = found + self.manager.block_size
        if stop >= len(tokens):
            return False
        return any(
            entry.start < stop
            and entry.request.use_cache
            and entry.request.cache_salt == request.cache_salt
            and entry.request.token_ids[:stop] == tokens[:stop]
            for entry in step
        )

    def _release(self, request: Request, status: RequestStatus) -> None:
        """Free a request's region, if it has one. The only place where regions are freed."""
        region, request.region = request.region, None
        if region is not None:
            self.manager.release(region)
        request.num_computed_tokens = 0
        request.status = status

    def _check_admissible(self, request: Request) -> None:
        if request.request_id in self._requests:
            raise ValueError(f"request_id {request.request_id!r} is in use")
        if not request.token_ids:
            raise ValueError("token_ids must hold at least 1 token, but is empty")
        num_tokens = request.num_prompt_tokens + request.params.max_tokens
        limit = self._max_model_len
        if self._held(limit) > self.manager.max_tokens:
            limit = self.manager.max_tokens
        if num_tokens > limit:
            raise ValueError(
                f"prompt ({request.num_prompt_tokens} tokens) and max_tokens "
                f"({request.params.max_tokens}) make {num_tokens}, but at most {limit} tokens fit"
            )


def _rank(request: Request) -> tuple[int, float]:
    """The order in which requests are served: lower priority values first, then arrival."""
    return request.priority, request.arrival_time


def _room(request: Request) -> int:
    """Tokens to make room for at admission: with no cache all, as who catches up cannot grow."""
    if request.use_cache:
        return len(request.token_ids)
    return request.num_prompt_tokens + request.params.max_tokens


def _may_share(request: Request) -> bool:
    """Whether cached tokens may be skipped: not while log-probabilities of the prompt are due."""
    scored = len(request.prompt_logprobs) >= request.num_prompt_tokens
    shares = request.use_cache and request.prefix_cache
    return shares and (request.params.prompt_logprobs is None or scored)
