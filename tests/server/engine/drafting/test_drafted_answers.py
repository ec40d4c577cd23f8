"""Drafted tokens change no bit of an answer, whatever is asked for and however wrong they are."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from engines import Result, collect, load_engine, make_request, run

from server.engine.drafting.drafter import Drafts, may_draft
from server.engine.grammars.grammar import GrammarSource
from server.engine.loaded_engine import LoadedEngine
from server.request import FinishReason, Request

CHECKPOINT = "rand-llama-tied"
REPEATING = list(b"the cache, the cache, the cache, the ")


class NoisyDrafter:
    """Drafts what each request is known to say, with any token wrong by chance."""

    def __init__(self, texts: Sequence[list[int]], *, errors: float, seed: int = 0) -> None:
        self.texts = texts
        self.errors = errors
        self.chance = random.Random(seed)
        self.outcomes: list[tuple[int, int]] = []

    def propose(self, requests: Sequence[Request]) -> Drafts:
        drafts: Drafts = []
        for request in requests:
            said = request.token_ids
            coming = next((text for text in self.texts if text[: len(said)] == said), said)
            draft = coming[len(said) : len(said) + self.chance.randint(0, 6)]
            draft = [t if self.chance.random() >= self.errors else t ^ 1 for t in draft]
            if draft := draft[: may_draft(request)]:
                drafts.append((request, draft))
        return drafts

    def record(self, request: Request, *, drafted: int, accepted: int) -> None:
        self.outcomes.append((drafted, accepted))

    def forget(self, request_id: str) -> None:
        pass


KINDS: dict[str, dict] = {
    "greedy": {"max_tokens": 40, "ignore_eos": True, "logprobs": 3},
    "seeded": {"max_tokens": 40, "ignore_eos": True, "temperature": 1.0, "seed": 5, "logprobs": 0},
    "cut": {"max_tokens": 30, "temperature": 1.2, "seed": 6, "top_p": 0.9, "top_k": 30,
            "min_p": 0.01, "logprobs": 2},
    "penalised": {"max_tokens": 40, "ignore_eos": True, "temperature": 0.8, "seed": 7,
                  "repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3,
                  "logprobs": 1},
    "banned": {"max_tokens": 30, "min_tokens": 20, "temperature": 1.0, "seed": 8,
               "bad_words": ((3, 4), (9,)), "logit_bias": {5: 4.0, 7: -50.0}, "logprobs": 0},
    "one token": {"max_tokens": 1, "logprobs": 0},
    "two tokens": {"max_tokens": 2, "ignore_eos": True, "logprobs": 0},
    "scored": {"max_tokens": 10, "ignore_eos": True, "prompt_logprobs": 1, "logprobs": 0},
    "uncached": {"max_tokens": 8, "ignore_eos": True, "use_cache": False, "logprobs": 0},
}  # fmt: skip


def prompt_of(kind: str) -> list[int]:
    """A prompt that is none of the others' beginning."""
    return [200 + sorted(KINDS).index(kind), *REPEATING]


def request_of(kind: str) -> Request:
    return make_request(prompt_of(kind), **KINDS[kind])


def facts(result: Result) -> tuple:
    """All that a client could see of an answer."""
    return (result.token_ids, result.text, result.logprobs, result.prompt_logprobs,
            result.finish_reason, result.last.stop_reason)  # fmt: skip


@pytest.fixture(scope="module")
def plain(checkpoint) -> dict[str, Result]:
    """Every kind's answer without drafts, alone."""
    engine = load_engine(checkpoint(CHECKPOINT)).engine
    return {kind: run(engine, [request_of(kind)])[0] for kind in KINDS}


def drafting_engine(path: Path, plain: dict[str, Result], **options: object) -> LoadedEngine:
    """An engine whose drafter knows the answers, but errs in one token of four."""
    loaded = load_engine(path, speculative="ngram", **options)
    texts = [prompt_of(kind) + result.token_ids for kind, result in plain.items()]
    loaded.engine.scheduler.drafter = NoisyDrafter(texts, errors=0.25)
    return loaded


@pytest.mark.parametrize("kind", KINDS)
def test_alone(checkpoint, plain, kind):
    """Alone, a request gets the same bits with drafts, right ones and wrong ones."""
    loaded = drafting_engine(checkpoint(CHECKPOINT), plain)
    assert facts(run(loaded.engine, [request_of(kind)])[0]) == facts(plain[kind])
    outcomes = loaded.engine.scheduler.drafter.outcomes
    if KINDS[kind]["max_tokens"] >= 30:
        assert any(accepted == drafted for drafted, accepted in outcomes)
        assert any(accepted < drafted for drafted, accepted in outcomes)
    loaded.engine.scheduler.manager.check_integrity()


def test_together(checkpoint, plain):
    """All kinds at once get their own answers, in a third of the steps or so."""
    loaded = drafting_engine(checkpoint(CHECKPOINT), plain)
    results = run(loaded.engine, [request_of(kind) for kind in KINDS])
    for kind, result in zip(KINDS, results, strict=True):
        assert facts(result) == facts(plain[kind]), kind
    assert loaded.timeline.totals.num_steps < 30
    assert loaded.engine.scheduler.manager.usage == 0
    loaded.engine.scheduler.manager.check_integrity()


@pytest.mark.parametrize("options", [{"max_num_batched_tokens": 5}, {"block_size": 32},
                                     {"kv_cache_memory": 100_000, "max_model_len": 90},
                                     {"threads": 2}])  # fmt: skip
def test_under_any_budget(checkpoint, plain, options):
    """Small steps, other blocks, a cache that is too small and more threads change nothing."""
    loaded = drafting_engine(checkpoint(CHECKPOINT), plain, **options)
    results = run(loaded.engine, [request_of(kind) for kind in KINDS])
    for kind, result in zip(KINDS, results, strict=True):
        assert facts(result) == facts(plain[kind]), kind
    if "kv_cache_memory" in options:
        assert loaded.engine.scheduler.num_preemptions > 0
    loaded.engine.scheduler.manager.check_integrity()


def test_ngrams_find_what_repeats(checkpoint):
    """Prompt look-up, as a user switches it on, gives the same answers in fewer steps."""
    path = checkpoint(CHECKPOINT)
    params = {"max_tokens": 60, "ignore_eos": True, "logprobs": 1}
    forced = {"logit_bias": dict.fromkeys(b"the cache", 200.0), "temperature": 1.0}
    requests = [{**params, "seed": seed, **forced} for seed in range(3)]
    without, ours = load_engine(path), load_engine(path, speculative="ngram")
    expected = run(without.engine, [make_request(REPEATING, **one) for one in requests])
    got = run(ours.engine, [make_request(REPEATING, **one) for one in requests])
    assert [facts(result) for result in got] == [facts(result) for result in expected]
    totals = ours.timeline.totals
    assert 0 < totals.num_accepted_tokens <= totals.num_drafted_tokens
    assert totals.num_steps < without.timeline.totals.num_steps
    assert totals.num_generated_tokens == without.timeline.totals.num_generated_tokens


def test_a_grammar_is_followed_through_drafts(checkpoint):
    """A constrained text fits its grammar to the letter, though drafts know nothing of it."""
    loaded = load_engine(checkpoint("script-gpt2"))
    source = GrammarSource('start: ("ab" | "cd")+ "."')

    def answer(engine) -> Result:
        grammar = loaded.grammars.compile(source)
        one = make_request(list(b"ababab"), grammar=grammar, temperature=1.0, seed=3,
                           max_tokens=60, logprobs=1)  # fmt: skip
        return run(engine, [one])[0]

    expected = answer(loaded.engine)
    drafting = load_engine(checkpoint("script-gpt2"), speculative="ngram")
    text = list(b"ababab") + expected.token_ids
    drafting.engine.scheduler.drafter = NoisyDrafter([text], errors=0.3)
    assert facts(answer(drafting.engine)) == facts(expected)
    assert drafting.timeline.totals.num_accepted_tokens > 0


def test_a_stop_ends_an_answer_inside_a_draft(checkpoint, plain):
    """What was drafted behind a stop string is never said, and its blocks go back."""
    path, greedy = checkpoint(CHECKPOINT), plain["greedy"]
    stop = greedy.text[10:13]
    params = {**KINDS["greedy"], "stop": (stop,)}
    expected = run(load_engine(path).engine, [make_request(prompt_of("greedy"), **params)])[0]
    loaded = drafting_engine(path, plain)
    loaded.engine.scheduler.drafter.errors = 0.0
    got = run(loaded.engine, [make_request(prompt_of("greedy"), **params)])[0]
    assert facts(got) == facts(expected)
    assert got.finish_reason is FinishReason.STOP
    assert loaded.engine.scheduler.manager.usage == 0


def test_an_aborted_request_leaves_nothing(checkpoint, plain):
    """A client that leaves while its request is drafted frees all of it."""
    loaded = drafting_engine(checkpoint(CHECKPOINT), plain)
    engine = loaded.engine
    one, other = request_of("greedy"), request_of("seeded")
    engine.add(one)
    engine.add(other)
    outputs = [*engine.step(), *engine.step(), *engine.step()]
    engine.abort(one.request_id)
    while engine.has_work:
        outputs += engine.step()
    assert facts(collect(outputs)[other.request_id]) == facts(plain["seeded"])
    assert engine.scheduler.manager.usage == 0
    engine.scheduler.manager.check_integrity()


def test_what_is_reported_adds_up(checkpoint, plain):
    """Drafted and accepted tokens are the same in the last output, the timeline and the totals."""
    loaded = drafting_engine(checkpoint(CHECKPOINT), plain)
    one = request_of("greedy")
    (result,) = run(loaded.engine, [one])
    outcomes = loaded.engine.scheduler.drafter.outcomes
    drafted, accepted = (sum(column) for column in zip(*outcomes, strict=True))
    record, totals = loaded.timeline.record(one.request_id), loaded.timeline.totals
    assert result.last is not None
    for place in (result.last, record, totals):
        assert (place.num_drafted_tokens, place.num_accepted_tokens) == (drafted, accepted)
    assert totals.num_drafts == len(outcomes)
    assert totals.num_generated_tokens == record.num_output_tokens == len(result.token_ids)
