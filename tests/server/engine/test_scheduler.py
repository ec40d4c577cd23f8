"""The scheduler, driven by a fake model that reads its tokens back from a fake cache.

The fake's next token depends on every token it finds in the blocks of the request, so a block that
was overwritten, shared wrongly or left uncomputed changes the answer.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import count
from zlib import crc32

import pytest

from cache.manager import KVCacheManager
from server.engine.planning.batch import Batch, ScheduledRequest
from server.engine.planning.pace import Pace
from server.engine.scheduler import Scheduler
from server.request import FinishReason, Request, RequestStatus, SamplingParams

BLOCK_SIZE = 4
_numbers = count()


def make_request(token_ids: list[int], *, max_tokens: int = 5, **options) -> Request:
    """A request that arrives after all made before it; options are Request's or prompt_logprobs."""
    number = next(_numbers)
    params = SamplingParams(
        max_tokens=max_tokens, prompt_logprobs=options.pop("prompt_logprobs", None)
    )
    defaults = {"request_id": f"request-{number}", "arrival_time": float(number)}
    return Request(token_ids=list(token_ids), params=params, **(defaults | options))


def next_token(token_ids: list[int]) -> int:
    return crc32(bytes(token_ids)) % 5


def alone(prompt: list[int], max_tokens: int) -> list[int]:
    """What the fake model generates for a prompt when nobody else is there."""
    token_ids = list(prompt)
    for _ in range(max_tokens):
        token_ids.append(next_token(token_ids))
    return token_ids[len(prompt) :]


@dataclass
class Server:
    """A scheduler, a fake cache and a fake model; every step is checked."""

    scheduler: Scheduler
    slots: dict[tuple[int, int], int] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.add(request)

    def step(self) -> Batch | None:
        """Schedule, write to the cache, read it back, choose, commit, finish."""
        batch = self.scheduler.schedule()
        if batch is None:
            return None
        self.batches.append(batch)
        for entry in batch.scheduled:
            for position in range(entry.start, entry.stop):
                token = entry.request.token_ids[position]
                self.slots[self.slot(entry.request, position)] = token
        sampling = [entry for entry in batch.scheduled if entry.samples]
        chosen = [next_token(self.read(entry)) for entry in sampling]
        self.scheduler.commit(batch)
        for entry, token in zip(sampling, chosen, strict=True):
            entry.request.token_ids.append(token)
        for entry in batch.scheduled:
            request = entry.request
            complete = entry.stop >= request.num_prompt_tokens
            if complete and request.num_output_tokens == request.params.max_tokens:
                self.scheduler.finish(request, FinishReason.LENGTH)
        self.scheduler.manager.check_integrity()
        return batch

    def slot(self, request: Request, position: int) -> tuple[int, int]:
        assert request.region is not None
        block, offset = divmod(position, BLOCK_SIZE)
        return request.region.block_ids[block], offset

    def read(self, entry: ScheduledRequest) -> list[int]:
        return [self.slots[self.slot(entry.request, p)] for p in range(entry.stop)]

    def run(self, max_steps: int = 5_000) -> None:
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                return
            assert self.step() is not None, "requests are left, but nothing is scheduled"
        pytest.fail(f"requests are left after {max_steps} steps")


def make_server(num_blocks: int = 64, *, prefix_caching: bool = True, **options: object) -> Server:
    """A server with `num_blocks` usable blocks of 4 tokens and generous limits."""
    manager = KVCacheManager(
        num_blocks=num_blocks + 1, block_size=BLOCK_SIZE, prefix_caching=prefix_caching
    )
    defaults = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 200,
        "pace": Pace(step_tokens=64),
    }
    return Server(Scheduler(manager, **(defaults | options)))


def one_stretch(step_tokens: float) -> Pace:
    """Prompts may cost as much again as a step and its decodes."""
    return Pace(max_stretch=2.0, step_tokens=step_tokens)


def parts(batch: Batch | None) -> list[tuple[Request, int, int]]:
    assert batch is not None
    return [(entry.request, entry.start, entry.num_new_tokens) for entry in batch.scheduled]


@pytest.mark.parametrize("seed", range(8))
def test_random_workloads_finish_with_undisturbed_answers(seed: int) -> None:
    """Whatever the pressure, every request that is not aborted gets the answer it gets alone."""
    generator = random.Random(seed)
    server = make_server(
        num_blocks=14,
        prefix_caching=seed % 4 != 0,
        max_num_seqs=6,
        max_num_batched_tokens=generator.choice([3, 8, 20]),
        pace=Pace(
            step_tokens=generator.choice([0.1, 1, 6]), context_tokens=generator.choice([3, 50])
        ),
    )
    requests = []
    for _ in range(80):
        prompt = [generator.choice([0, 0, 0, 1]) for _ in range(generator.randint(1, 30))]
        requests.append(
            make_request(
                prompt,
                max_tokens=generator.choice([0, 1, 3, 12, 25]),
                priority=generator.choice([0, 0, 1]),
                cache_salt=generator.choice(["", "", "salt"]),
                prompt_logprobs=generator.choice([None, None, None, 0]),
                use_cache=generator.random() < 0.9,
            )
        )
    aborted = set()
    arriving = list(requests)
    while arriving or server.scheduler.has_work:
        while arriving and generator.random() < 0.4:
            server.add(arriving.pop(0))
        if generator.random() < 0.02 and server.scheduler.requests:
            victim = generator.choice(server.scheduler.requests)
            assert server.scheduler.abort(victim.request_id) is victim
            aborted.add(victim)
        batch = server.step()
        assert (batch is not None) or not server.scheduler.has_work or arriving
    assert server.scheduler.num_preemptions > 0
    assert server.scheduler.manager.usage == 0
    assert 0 < len(aborted) < 40
    for request in requests:
        assert (request.status, request.region) == (RequestStatus.FINISHED, None)
        if request not in aborted:
            prompt = request.token_ids[: request.num_prompt_tokens]
            assert request.token_ids[len(prompt) :] == alone(prompt, request.params.max_tokens)
    ended = server.scheduler.num_finished
    assert ended == {FinishReason.LENGTH: 80 - len(aborted), FinishReason.ABORT: len(aborted)}


@pytest.mark.parametrize("budget", [1, 2, 7, 30])
def test_no_step_exceeds_its_budget_or_its_seats(budget: int) -> None:
    """Tokens and requests of a step stay within their limits, and single tokens come first."""
    server = make_server(max_num_batched_tokens=budget, max_num_seqs=3)
    server.add(*(make_request([n] * (3 * n + 1)) for n in range(1, 8)))
    while server.step():
        assert server.scheduler.num_running <= min(3, budget)  # else one would get no token
    for batch in server.batches:
        counts = [entry.num_new_tokens for entry in batch.scheduled]
        assert 0 < sum(counts) == batch.num_tokens <= budget
        assert len(counts) <= min(3, budget)
        assert all(n == 1 for n in counts[: batch.num_decodes])
        assert all(n > 1 for n in counts[batch.num_decodes :])


def test_a_prompt_is_computed_in_chunks_and_sampled_at_its_end() -> None:
    """A prompt longer than the budget takes several steps, and only the last chooses a token."""
    server = make_server(max_num_batched_tokens=7)
    request = make_request(list(range(17)), max_tokens=2)
    server.add(request)
    server.run()
    entries = [batch.scheduled[0] for batch in server.batches]
    assert [(e.start, e.num_new_tokens, e.samples) for e in entries] == [
        (0, 7, False),
        (7, 7, False),
        (14, 3, True),
        (17, 1, True),
    ]


def test_rows_of_a_batch_are_laid_out_one_request_after_the_other() -> None:
    """First rows count up the new tokens before; sampled rows are the last of those that sample."""
    scheduled = tuple(
        ScheduledRequest(make_request([0] * 9), 0, length, samples=samples)
        for length, samples in ((1, True), (1, False), (4, False), (3, True))
    )
    batch = Batch.of(scheduled)
    assert (batch.num_tokens, batch.num_decodes) == (9, 2)
    assert batch.first_rows == [0, 1, 2, 6]
    assert batch.sample_rows == [0, 8]
    assert batch.sampling_requests == [scheduled[0].request, scheduled[3].request]


@pytest.mark.parametrize(("budget", "beside"), [(64, 6), (9, 64)])
def test_streams_go_on_while_a_long_prompt_is_computed(budget: int, beside: int) -> None:
    """A long prompt adds few tokens to each step, and the decoding requests are in all of them."""
    server = make_server(max_num_batched_tokens=budget, pace=one_stretch(beside - 3))
    streams = [make_request([n], max_tokens=30) for n in range(3)]
    server.add(*streams)
    server.step()
    newcomer = make_request([7] * 61, priority=-1)
    server.add(newcomer)
    while newcomer.num_output_tokens == 0:
        batch = server.step()
        new = {request: num_new for request, _, num_new in parts(batch)}
        assert [new[stream] for stream in streams] == [1, 1, 1]
        assert 0 < new[newcomer] <= 6
    assert newcomer.status is RequestStatus.RUNNING


def test_a_long_prompt_alone_takes_the_whole_budget() -> None:
    """The limit beside decodes does not slow down a step without any."""
    server = make_server(pace=one_stretch(5), max_num_batched_tokens=40)
    server.add(make_request([1] * 60), make_request([2] * 60))
    assert [new for _, _, new in parts(server.step())] == [40]
    assert [new for _, _, new in parts(server.step())] == [20, 20]
    assert [new for _, _, new in parts(server.step())] == [1, 6]


def test_waiting_requests_start_by_priority_then_arrival() -> None:
    """Lower priority values first; among equals whoever came first, whenever it was added."""
    server = make_server(max_num_seqs=1)
    late, early = (make_request([n], arrival_time=9.0 - n) for n in (1, 2))
    urgent, idle = make_request([3], priority=-1), make_request([4], priority=1)
    server.add(idle, late, early, urgent)
    server.run()
    order = dict.fromkeys(batch.scheduled[0].request for batch in server.batches)
    assert list(order) == [urgent, early, late, idle]


def test_nobody_overtakes_a_request_that_waits_for_room() -> None:
    """A large request at the head holds back small ones behind it, so it cannot starve."""
    server = make_server(num_blocks=10)
    running, large, small = (
        make_request([n] * length, max_tokens=4) for n, length in ((1, 16), (2, 30), (3, 2))
    )
    server.add(running, large, small)
    server.step()
    assert (server.scheduler.num_running, server.scheduler.num_waiting) == (1, 2)
    server.run()
    first_step = {}
    for number, batch in enumerate(server.batches):
        for entry in batch.scheduled:
            first_step.setdefault(entry.request, number)
    assert first_step[running] < first_step[large] <= first_step[small]


def test_the_last_in_order_gives_way_and_comes_back_with_its_tokens() -> None:
    """When blocks run out the latest request is preempted, keeps its tokens, and ends as alone."""
    server = make_server(num_blocks=6, max_num_seqs=4)
    older, younger = (make_request([n] * 7, max_tokens=13) for n in (1, 2))
    server.add(older, younger)
    while not server.scheduler.num_preemptions:
        server.step()
    assert (younger.status, younger.region) == (RequestStatus.WAITING, None)
    assert (younger.num_computed_tokens, younger.num_preemptions) == (0, 1)
    assert younger.num_output_tokens > 0
    assert older.status is RequestStatus.RUNNING
    server.run()
    assert older.num_preemptions == 0
    assert older.token_ids[7:] == alone([1] * 7, 13)
    assert younger.token_ids[7:] == alone([2] * 7, 13)
    assert younger.num_cached_tokens == 0  # as at first admission, though it found its own later


def test_a_lower_priority_gives_way_to_a_higher_one_that_came_later() -> None:
    """The victim is the lowest in priority, not the latest; it never is the other way round."""
    server = make_server(num_blocks=6)
    low, high = (
        make_request([1] * 7, max_tokens=13, priority=1),
        make_request([2] * 7, max_tokens=13),
    )
    server.add(low)
    server.step()
    server.add(high)
    server.run()
    assert low.num_preemptions > 0
    assert high.num_preemptions == 0
    assert low.token_ids[7:] == alone([1] * 7, 13)


def test_a_preempted_request_waits_ahead_of_newcomers() -> None:
    """Of equal priority and arrival, who was running before is the first to be admitted again."""
    server = make_server(num_blocks=6, max_num_seqs=2)
    older = make_request([1] * 7, max_tokens=13)
    younger, newcomer = (make_request([n] * 7, max_tokens=13, arrival_time=1e9) for n in (2, 3))
    server.add(older, younger, newcomer)
    while not server.scheduler.num_preemptions:
        server.step()
    assert younger.num_preemptions == 1
    while younger.region is None:
        assert newcomer.region is None
        server.step()


def test_a_newcomer_leaves_a_block_for_each_running_request() -> None:
    """A request that would take the last blocks waits instead of having others preempted."""
    server = make_server(num_blocks=4)
    running, newcomer = make_request([1] * 7, max_tokens=5), make_request([2] * 7, max_tokens=1)
    server.add(running)
    server.step()
    server.add(newcomer)
    server.step()
    assert newcomer.num_output_tokens == 0
    server.run()
    assert server.scheduler.num_preemptions == 0


def test_a_request_that_fills_the_whole_cache_runs() -> None:
    """Alone, a request may take every block, and it does so after others have come and gone."""
    server = make_server(num_blocks=5)
    server.add(*(make_request([n] * 5) for n in range(4)))
    whole = make_request([1] * 15, max_tokens=5)
    server.add(whole)
    server.run()
    assert whole.token_ids[15:] == alone([1] * 15, 5)
    assert server.scheduler.manager.usage == 0


def test_a_repeated_prompt_computes_only_what_is_not_cached() -> None:
    """A prompt that was computed before starts behind its full blocks, with one token at least."""
    server = make_server()
    prompt = list(range(16))
    server.add(make_request(prompt))
    server.run()
    repeated, extended = make_request(prompt), make_request([*prompt, 99])
    server.add(repeated, extended)
    assert parts(server.step()) == [(extended, 16, 1), (repeated, 12, 4)]
    assert (repeated.num_cached_tokens, extended.num_cached_tokens) == (12, 16)


def test_a_prompt_cached_under_another_salt_is_computed() -> None:
    """Requests share with those of their own salt and with no others."""
    server = make_server()
    server.add(make_request([1] * 9, cache_salt="alice"))
    server.run()
    bob, alice = (make_request([1] * 9, cache_salt=salt) for salt in ("bob", "alice"))
    server.add(bob, alice)
    server.run()
    assert (bob.num_cached_tokens, alice.num_cached_tokens) == (0, 8)


@pytest.mark.parametrize("budget", [6, 7, 16, 64])
def test_equal_prompts_that_arrive_together_are_computed_once(budget: int) -> None:
    """Later ones wait for the blocks being computed, also over several chunks, and share them."""
    server = make_server(max_num_batched_tokens=budget)
    prompt = [n % 7 for n in range(42)]
    requests = [make_request(prompt, max_tokens=3) for _ in range(6)]
    server.add(*requests)
    server.run()
    prompt_tokens = sum(
        entry.num_new_tokens
        for batch in server.batches
        for entry in batch.scheduled
        if entry.start < 42
    )
    assert prompt_tokens == 42 + 5 * 2
    assert [request.num_cached_tokens for request in requests] == [0, *[40] * 5]
    assert all(request.token_ids[42:] == alone(prompt, 3) for request in requests)


def test_waiting_for_a_shared_beginning_ends_with_it() -> None:
    """A request waits only as long as the block it needs next is in the step being planned."""
    server = make_server(max_num_batched_tokens=8)
    first = make_request([0] * 8 + [1] * 24)
    second = make_request([0] * 8 + [2] * 8)
    server.add(first, second)
    assert [request for request, _, _ in parts(server.step())] == [first]
    while second.num_output_tokens == 0:
        server.step()
    assert second.num_cached_tokens == 8


def test_nobody_waits_for_a_block_that_was_computed_and_forgotten() -> None:
    """After a reset of the cache an equal prompt starts at once, though the first still runs."""
    server = make_server()
    first, second = make_request([1] * 9, max_tokens=50), make_request([1] * 9)
    server.add(first)
    server.step()
    server.scheduler.manager.reset_prefix_cache()
    server.add(second)
    assert parts(server.step()) == [(first, 9, 1), (second, 0, 9)]


@pytest.mark.parametrize("difference", ["salt", "declined", "no caching"])
def test_requests_that_cannot_share_do_not_wait_for_each_other(difference: str) -> None:
    """Different salts, a request without prefix reuse, or a cache without it start at once."""
    server = make_server(prefix_caching=difference != "no caching")
    first = make_request([1] * 9)
    second = make_request(
        [1] * 9,
        cache_salt="other" if difference == "salt" else "",
        prefix_cache=difference != "declined",
    )
    server.add(first, second)
    assert parts(server.step()) == [(first, 0, 9), (second, 0, 9)]
    assert second.num_cached_tokens == 0


def test_prompt_logprobs_are_computed_not_skipped() -> None:
    """A request that wants scores for its prompt computes all of it, though it is cached."""
    server = make_server()
    prompt = [1] * 9
    server.add(make_request(prompt))
    server.run()
    scored = make_request(prompt, prompt_logprobs=0, max_tokens=6)
    server.add(scored)
    assert parts(server.step()) == [(scored, 0, 9)]
    assert scored.num_cached_tokens == 0


def test_recomputation_after_complete_scores_may_share() -> None:
    """Once all prompt scores are there, a preempted request comes back through the cache."""
    server = make_server(num_blocks=6)
    older = make_request([1] * 7, max_tokens=13)
    scored = make_request([2] * 7, max_tokens=13, prompt_logprobs=0)
    server.add(older, scored)
    server.step()
    scored.prompt_logprobs += [None] * 7
    while not server.scheduler.num_preemptions:
        server.step()
    server.scheduler.abort(older.request_id)
    assert parts(server.step())[0][1] == 8


def test_scoring_never_samples() -> None:
    """A request for no tokens is computed to the end of its prompt, and nothing is chosen."""
    server = make_server(max_num_batched_tokens=6)
    request = make_request([1] * 9, max_tokens=0)
    server.add(request)
    server.run()
    assert [batch.sampling_requests for batch in server.batches] == [[], []]
    assert request.num_output_tokens == 0


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "token_ids must hold at least 1 token"),
        ([1] * 196, {}, r"prompt \(196 tokens\) and max_tokens \(5\) make 201, but at most 200"),
        ([1], {"request_id": "taken"}, "request_id 'taken' is in use"),
    ],
)
def test_what_can_never_run_is_refused(prompt: list[int], options: dict, message: str) -> None:
    """An empty, over-long or duplicate request is refused with its numbers; nothing changes."""
    server = make_server()
    server.add(make_request([1], request_id="taken"))
    with pytest.raises(ValueError, match=message):
        server.add(make_request(prompt, **options))
    assert server.scheduler.num_waiting == 1
    server.run()


def test_what_can_never_fit_in_the_cache_is_refused() -> None:
    """The cache bounds a request like the model's length does."""
    server = make_server(num_blocks=4)
    server.add(make_request([1] * 11, max_tokens=5))
    with pytest.raises(ValueError, match="make 17, but at most 16 tokens fit"):
        server.add(make_request([1] * 12, max_tokens=5))


@pytest.mark.parametrize("num_steps", [0, 1, 2, 5])
def test_abort_works_in_every_state(num_steps: int) -> None:
    """Waiting, half computed or decoding, an aborted request is gone and its blocks with it."""
    server = make_server(max_num_batched_tokens=5)
    request = make_request([1] * 8, max_tokens=9)
    server.add(request)
    for _ in range(num_steps):
        server.step()
    assert server.scheduler.abort(request.request_id) is request
    assert (request.status, request.region) == (RequestStatus.FINISHED, None)
    assert not server.scheduler.has_work
    assert server.scheduler.manager.usage == 0
    assert server.scheduler.abort(request.request_id) is None
    assert server.scheduler.schedule() is None


def test_abort_of_a_preempted_request() -> None:
    """A request that was preempted and waits again can be aborted like any other."""
    server = make_server(num_blocks=6)
    older, younger = (make_request([n] * 7, max_tokens=13) for n in (1, 2))
    server.add(older, younger)
    while not server.scheduler.num_preemptions:
        server.step()
    assert server.scheduler.abort(younger.request_id) is younger
    server.run()
    assert older.token_ids[7:] == alone([1] * 7, 13)


def test_commit_passes_over_what_was_aborted_meanwhile() -> None:
    """A request that ended between schedule and commit has nothing left to record."""
    server = make_server()
    request, other = make_request([1] * 9), make_request([2] * 9)
    server.add(request, other)
    batch = server.scheduler.schedule()
    assert batch is not None
    server.scheduler.abort(request.request_id)
    server.scheduler.commit(batch)
    assert (request.num_computed_tokens, other.num_computed_tokens) == (0, 9)
    assert server.scheduler.manager.num_matching_tokens([1] * 9) == 0


def test_without_the_cache_every_step_computes_the_whole_sequence() -> None:
    """Each token of such a request is chosen after computing all tokens before it anew."""
    server = make_server()
    request = make_request([1] * 9, max_tokens=4, use_cache=False)
    server.add(request)
    server.run()
    assert [parts(batch) for batch in server.batches] == [
        [(request, 0, length)] for length in (9, 10, 11, 12)
    ]
    assert request.token_ids[9:] == alone([1] * 9, 4)


def test_without_the_cache_nothing_is_shared() -> None:
    """Such a request neither finds a cached beginning nor leaves one, and nobody waits for it."""
    server = make_server()
    first, second = (make_request([1] * 9, use_cache=use_cache) for use_cache in (True, False))
    server.add(first)
    server.run()
    server.add(second)
    server.run()
    assert second.num_cached_tokens == 0
    server.scheduler.manager.reset_prefix_cache()
    third, beside = (make_request([1] * 9, use_cache=use_cache) for use_cache in (False, True))
    server.add(third, beside)
    assert len(parts(server.step())) == 2
    assert server.scheduler.manager.num_matching_tokens([1] * 9) == 8
    server.run()
    assert third.token_ids == beside.token_ids


def test_a_request_ends_once() -> None:
    """Finishing a request twice is a fault of ours and is noticed."""
    server = make_server()
    request = make_request([1])
    server.add(request)
    server.step()
    server.scheduler.finish(request, FinishReason.STOP)
    with pytest.raises(AssertionError, match="ended before"):
        server.scheduler.finish(request, FinishReason.STOP)
    assert server.scheduler.num_finished == {FinishReason.STOP: 1}
