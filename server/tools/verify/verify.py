"""Verification: the same requests under many conditions, and whether their answers are the same.

A probe is a request whose answer is known from having run alone; a trial runs the probes again in
other company, from a warm cache, in other chunks, preempted, or on other threads, and compares
tokens and log-probabilities to the last bit. Uses the engine as the server does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from server.config import EngineConfig
from server.engine.drafting.drafter import Drafts, may_draft
from server.engine.loaded_engine import LoadedEngine, build_engine
from server.request import Logprob, Request, RequestOutput, SamplingParams

ANSWER_TOKENS = 24
COMPANIES = (1, 7, 31)
CHUNKS = (7, 64, 1024)
"""Tokens of one step, and so the longest chunk of a prompt; odd, even, and all at once."""
LONGEST_PROMPT = 320
BLOCK, TINY = 16, 29
"""Tokens in a block and blocks of the cache in which requests are preempted."""

Build = Callable[[EngineConfig], LoadedEngine]


@dataclass(frozen=True, slots=True)
class Probe:
    """A request that is run again and again."""

    name: str
    token_ids: tuple[int, ...]
    params: SamplingParams

    def request(self, request_id: str, *, use_cache: bool, salt: str) -> Request:
        """A fresh request; the engine owns it from then on."""
        return Request(
            request_id=request_id,
            token_ids=list(self.token_ids),
            params=self.params,
            use_cache=use_cache,
            cache_salt=salt,
        )


@dataclass(slots=True)
class ProbeAnswer:
    """Answer to a probe."""

    probe: str
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    prompt_logprobs: list[Logprob | None] = field(default_factory=list)
    text: str = ""
    error: str | None = None
    num_cached_tokens: int = 0

    def add(self, output: RequestOutput) -> None:
        """Enter what a step brought."""
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs
        self.prompt_logprobs += output.prompt_logprobs or ()
        self.text += output.text
        self.error = self.error or output.error
        self.num_cached_tokens = max(self.num_cached_tokens, output.num_cached_tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Where an answer parts from the one given alone."""

    probe: str
    place: str
    alone: str
    here: str
    size: float
    """Between the two log-probabilities, where both chose the same; infinite where they did not."""

    def __str__(self) -> str:
        return f"{self.probe}, {self.place}: {self.alone} alone, {self.here} here"


@dataclass(kw_only=True, slots=True)
class TrialResult:
    """Result of a trial under one condition."""

    condition: str
    group: str
    num_answers: int = 0
    note: str = ""
    differences: list[Difference] = field(default_factory=list)

    @property
    def largest(self) -> float:
        """The largest difference of log-probabilities before answers part."""
        return max((d.size for d in self.differences if d.size != float("inf")), default=0.0)


def probes(vocab_size: int, *, longest: int) -> list[Probe]:
    """Requests short and long, greedy and seeded, with all that a request may ask for.

    Args:
        vocab_size: Prompts are made of random ids, so that any model has an answer to them.
        longest: Tokens of the longest prompt.
    """
    source = random.Random("probes")  # noqa: S311 - no secret depends on it
    greedy = SamplingParams(max_tokens=ANSWER_TOKENS, temperature=0.0, ignore_eos=True, logprobs=5)
    seeded = replace(greedy, temperature=1.0, seed=1234)
    narrow = replace(seeded, top_p=0.9, top_k=40, min_p=0.01, seed=99)
    penalised = replace(seeded, presence_penalty=0.5, frequency_penalty=0.3, seed=7)
    kinds: Sequence[tuple[str, int, SamplingParams]] = (
        ("1 token, greedy", 1, greedy),
        ("17 tokens, seeded", 17, seeded),
        ("64 tokens, top-p, top-k and min-p", 64, narrow),
        ("130 tokens, penalties", 130, penalised),
        ("200 tokens, prompt scored", 200, replace(greedy, prompt_logprobs=2)),
        (f"{LONGEST_PROMPT} tokens, greedy", LONGEST_PROMPT, greedy),
    )
    return [
        Probe(name, tuple(_prompt(source, vocab_size, min(length, longest))), params)
        for name, length, params in kinds
    ]


class Verification:
    """Runs every trial on one model.

    Args:
        config: What to load; threads and sizes are varied from it.
        build: Makes an engine; tests bring one with a fault in it.
    """

    def __init__(self, config: EngineConfig, *, build: Build = build_engine) -> None:
        self._config = config
        self._build = build
        self._numbers = count()
        self._length = config.max_model_len
        self._loaded = self._engine(threads=1)
        self.info = self._loaded.info
        self._length = min(self.info.max_model_len, LONGEST_PROMPT + 2 * ANSWER_TOKENS)
        longest = min(LONGEST_PROMPT, self.info.max_model_len - ANSWER_TOKENS)
        self._probes = probes(self.info.vocab_size, longest=longest)
        self._longest = longest
        self._alone: dict[str, ProbeAnswer] = {}

    def run(self) -> Iterator[TrialResult]:
        """Try everything, one condition after the other."""
        self._alone = {a.probe: a for a in self._one_by_one(self._loaded)}
        yield TrialResult(
            condition="alone, cold, 1 thread: what all else is compared with",
            group="alone",
            num_answers=len(self._alone),
        )
        loaded = self._loaded
        yield self._warm(loaded)
        yield self._compare("without the cache", "cache", self._uncached(loaded))
        yield from self._companies(loaded, threads=1)
        del loaded, self._loaded
        for size in CHUNKS:
            engine = self._engine(threads=1, max_num_batched_tokens=size)
            yield self._compare(f"in chunks of {size}", "chunks", self._one_by_one(engine))
        yield self._preempted()
        yield self._drafted()
        many = self._engine(threads=self._config.threads)
        threads = many.info.num_threads
        if threads > 1:
            answers = self._one_by_one(many)
            yield self._compare(f"alone, {threads} threads", "threads", answers)
            yield from self._companies(many, threads=threads)

    def _engine(self, **settings: object) -> LoadedEngine:
        """An engine for short requests, its cache large enough for a crowd unless told."""
        seats = max(COMPANIES) + 1
        chosen = {"max_num_seqs": seats, "max_model_len": self._length, **settings}
        return self._build(self._config.model_copy(update=chosen))

    def _one_by_one(self, loaded: LoadedEngine) -> Iterator[ProbeAnswer]:
        for probe in self._probes:
            yield from self._together(loaded, [probe])

    def _warm(self, loaded: LoadedEngine) -> TrialResult:
        """The same again: by now the cache knows every prompt."""
        answers = list(self._one_by_one(loaded))
        result = self._compare("with a warm prefix cache", "prefix", iter(answers))
        found = sum(answer.num_cached_tokens for answer in answers)
        return replace(result, note=f"{found} prompt tokens found")

    def _uncached(self, loaded: LoadedEngine) -> Iterator[ProbeAnswer]:
        """Every token of the short ones computed from the whole sequence anew."""
        for probe in self._probes:
            if len(probe.token_ids) <= 64:
                yield from self._together(loaded, [probe], use_cache=False)

    def _companies(self, loaded: LoadedEngine, *, threads: int) -> Iterator[TrialResult]:
        """Among others of any kind; the probes are company for each other."""
        source = random.Random("others")  # noqa: S311 - no secret depends on it
        plural = "" if threads == 1 else "s"
        for size in COMPANIES:
            answers: list[ProbeAnswer] = []
            for start in range(0, len(self._probes), size + 1):
                chosen = self._probes[start : start + size + 1]
                others = [self._other(source) for _ in range(size + 1 - len(chosen))]
                answers += self._together(loaded, chosen, others=others, mix=source)
            condition = f"with {size} other{'s' if size > 1 else ''}, {threads} thread{plural}"
            yield self._compare(condition, "company", iter(answers))

    def _preempted(self) -> TrialResult:
        """In a cache so small that requests must give way to each other.

        With TINY blocks as many copies of a short probe begin as then find no room to grow; a
        long one gives way to those that came before it.
        """
        memory = TINY * BLOCK * self.info.cost.cache_bytes_per_token
        loaded = self._engine(threads=1, kv_cache_memory=memory, block_size=BLOCK)
        one, short, middle, long, scored, longest = self._probes
        crowds = [[probe] * (TINY // 2 + 1) for probe in (one, short, middle, long)]
        crowds += [[middle, long, scored], [middle, short, longest]]
        answers = [
            answer for crowd in crowds for answer in self._together(loaded, crowd, salted=True)
        ]
        result = self._compare("preempted, in a tiny cache", "preemption", iter(answers))
        return replace(result, note=f"{loaded.engine.scheduler.num_preemptions} preemptions")

    def _drafted(self) -> TrialResult:
        """Several tokens a step, guessed from the known answers with every fourth one wrong."""
        loaded = self._engine(threads=1, speculative="ngram")
        drafter = ForetellingDrafter(
            {(*probe.token_ids, *self._alone[probe.name].token_ids) for probe in self._probes},
            vocab_size=self.info.vocab_size,
        )
        loaded.engine.scheduler.drafter = drafter
        answers = [*self._one_by_one(loaded), *self._together(loaded, self._probes)]
        result = self._compare("with drafted tokens, right and wrong", "drafts", iter(answers))
        note = f"{drafter.num_accepted} of {drafter.num_drafted} drafted tokens came true"
        return replace(result, note=note)

    def _other(self, source: random.Random) -> Request:
        """Some request, of any length and kind."""
        length = source.choice((1, 2, 15, 16, 33, 90, 150))
        params = SamplingParams(
            max_tokens=source.randint(1, ANSWER_TOKENS),
            temperature=source.choice((0.0, 0.7, 1.3)),
            top_k=source.choice((0, 20)),
            seed=source.randrange(1000),
            frequency_penalty=source.choice((0.0, 0.5)),
            logprobs=source.choice((None, 0, 3)),
            prompt_logprobs=source.choice((None, None, 1)),
        )
        tokens = _prompt(source, self.info.vocab_size, min(length, self._longest // 2))
        return Request(request_id=f"other-{next(self._numbers)}", token_ids=tokens, params=params)

    def _together(
        self,
        loaded: LoadedEngine,
        chosen: Sequence[Probe],
        *,
        others: Sequence[Request] = (),
        mix: random.Random | None = None,
        use_cache: bool = True,
        salted: bool = False,
    ) -> list[ProbeAnswer]:
        """Run probes and others at once.

        With `mix` they come in any order, some steps apart; `salted` ones share no prefix.
        """
        answers = {f"probe-{next(self._numbers)}": ProbeAnswer(probe.name) for probe in chosen}
        mine = [
            probe.request(name, use_cache=use_cache, salt=name if salted else "")
            for name, probe in zip(answers, chosen, strict=True)
        ]
        arriving = [*mine, *others]
        if mix is not None:
            mix.shuffle(arriving)
        engine = loaded.engine
        while arriving or engine.has_work:
            while arriving and (mix is None or not engine.has_work or mix.random() < 0.7):
                engine.add(arriving.pop(0))
            for output in engine.step():
                if output.request_id in answers:
                    answers[output.request_id].add(output)
        return list(answers.values())

    def _compare(self, condition: str, group: str, answers: Iterator[ProbeAnswer]) -> TrialResult:
        result = TrialResult(condition=condition, group=group)
        for answer in answers:
            result.num_answers += 1
            result.differences += differences(self._alone[answer.probe], answer)
        return result


class ForetellingDrafter:
    """A Drafter that knows what will be said, and gets every fourth token wrong.

    Args:
        texts: Prompts with their answers.
        vocab_size: Of the model.
    """

    def __init__(self, texts: Collection[tuple[int, ...]], *, vocab_size: int) -> None:
        self._texts = texts
        self._vocab_size = vocab_size
        self.num_drafted = 0
        self.num_accepted = 0

    def propose(self, requests: Sequence[Request]) -> Drafts:
        """Guess up to five tokens for each request whose text is known."""
        drafts: Drafts = []
        for request in requests:
            said = tuple(request.token_ids)
            coming = next((text for text in self._texts if text[: len(said)] == said), said)
            draft = [
                token if position % 4 else (token + 1) % self._vocab_size
                for position, token in enumerate(coming[len(said) : len(said) + 5], len(said))
            ][: may_draft(request)]
            if draft:
                drafts.append((request, draft))
        return drafts

    def record(self, request: Request, *, drafted: int, accepted: int) -> None:  # noqa: ARG002 - a Drafter's
        """Count how much came true."""
        self.num_drafted += drafted
        self.num_accepted += accepted

    def forget(self, request_id: str) -> None:
        """Remember nothing of a request anyway."""


def differences(alone: ProbeAnswer, here: ProbeAnswer) -> list[Difference]:
    """Every place where two answers are not the same bits, up to where their tokens part."""
    if here.error is not None or alone.error is not None:
        return [_parted(alone, "outcome", (alone.error, here.error))]
    found = _compare_scores("prompt token", alone, (alone.prompt_logprobs, here.prompt_logprobs))
    found += _compare_scores("answer token", alone, (alone.logprobs, here.logprobs))
    for name in ("token_ids", "text"):
        values = getattr(alone, name), getattr(here, name)
        if not found and values[0] != values[1]:
            found.append(_parted(alone, name, values))
    return found


_Scores = Sequence[Logprob | None]


def _compare_scores(
    what: str, alone: ProbeAnswer, scores: tuple[_Scores, _Scores]
) -> list[Difference]:
    if len(scores[0]) != len(scores[1]):
        return [_parted(alone, f"number of {what}s", (len(scores[0]), len(scores[1])))]
    found: list[Difference] = []
    for position, (first, second) in enumerate(zip(*scores, strict=True)):
        if first == second:
            continue
        place = f"{what} {position}"
        if first is None or second is None or first.token_id != second.token_id:
            return [*found, _parted(alone, place, (_words(first), _words(second)))]
        size = max(abs(a - b) for a, b in _pairs(first, second))
        found.append(
            Difference(
                probe=alone.probe,
                place=place,
                alone=_words(first),
                here=_words(second),
                size=size,
            )
        )
    return found


def _pairs(first: Logprob, second: Logprob) -> Iterator[tuple[float, float]]:
    """Log-probabilities that should be equal: the chosen token's, and those of equal rank."""
    yield first.logprob, second.logprob
    for (_, one), (_, other) in zip(first.top, second.top, strict=True):
        yield one, other


def _parted(alone: ProbeAnswer, place: str, values: tuple[object, object]) -> Difference:
    return Difference(
        probe=alone.probe,
        place=place,
        alone=str(values[0]),
        here=str(values[1]),
        size=float("inf"),
    )


def _words(score: Logprob | None) -> str:
    """A score in full: every bit counts."""
    if score is None:
        return "nothing"
    top: Mapping[int, float] = dict(score.top)
    rest = f", likeliest {top}" if top else ""
    return f"token {score.token_id} at {score.logprob!r}{rest}"


def _prompt(source: random.Random, vocab_size: int, length: int) -> list[int]:
    return [source.randrange(vocab_size) for _ in range(max(1, length))]
