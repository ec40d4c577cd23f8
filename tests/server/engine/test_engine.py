"""The engine gives each request the same answer, however it is scheduled and whoever else runs."""

import random
from itertools import pairwise

import checkpoints
import pytest
import torch
from engines import Result, collect, load_engine, make_request, run

from model.executors.executor import Ready
from server.engine.grammars.grammar import GrammarSource
from server.request import FinishReason

FAMILIES = sorted(checkpoints.RANDOM_CONFIGS)
CROWD_SEED = 7


def prompts(count: int, *, longest: int = 90) -> list[list[int]]:
    """Random byte prompts of very different lengths."""
    source = random.Random(CROWD_SEED)
    lengths = [source.choice([1, 2, 7, 15, 16, 17, 33, longest]) for _ in range(count)]
    return [[source.randrange(256) for _ in range(length)] for length in lengths]


def assert_same(first: Result, second: Result, tolerance: float = 1e-4) -> None:
    """Equal tokens, text and end, and log-probabilities within the tolerance."""
    assert first.token_ids == second.token_ids
    assert (first.text, first.finish_reason) == (second.text, second.finish_reason)
    for one, other in zip(first.logprobs, second.logprobs, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=tolerance)


def alone(path, token_ids, **params) -> Result:
    """The answer of an engine that has never seen another request."""
    return run(load_engine(path).engine, [make_request(token_ids, logprobs=0, **params)])[0]


@pytest.mark.parametrize("name", FAMILIES)
def test_prompt_scores_equal_transformers(checkpoint, name):
    """Log-probabilities of a prompt, computed in chunks, equal those of transformers."""
    path = checkpoint(name)
    loaded = load_engine(path, max_num_batched_tokens=23)
    engine = loaded.engine
    token_ids = [(17 * i + i * i) % 256 for i in range(min(100, loaded.info.max_model_len))]
    expected = checkpoints.reference_logprobs(checkpoints.reference(path), token_ids)
    result = run(engine, [make_request(token_ids, prompt_logprobs=2, max_tokens=0)])[0]
    assert result.prompt_logprobs is not None
    assert result.prompt_logprobs[0] is None
    assert len(result.prompt_logprobs) == len(token_ids)
    for position, scored in enumerate(result.prompt_logprobs[1:]):
        assert scored is not None
        assert scored.token_id == token_ids[position + 1]
        assert scored.logprob == pytest.approx(expected[position, scored.token_id].item(), abs=1e-3)
        best = expected[position].topk(2)
        assert [value for _, value in scored.top] == pytest.approx(best.values.tolist(), abs=1e-3)


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_answers_equal_transformers(checkpoint, name):
    """Each generated token has the log-probability that transformers gives it in place."""
    path = checkpoint(name)
    result = alone(path, list(b"The cache holds"), max_tokens=40, ignore_eos=True)
    tokens = list(b"The cache holds") + result.token_ids
    expected = checkpoints.reference_logprobs(checkpoints.reference(path), tokens)
    for offset, scored in enumerate(result.logprobs):
        row = expected[len(b"The cache holds") - 1 + offset]
        assert scored.logprob == pytest.approx(row[scored.token_id].item(), abs=1e-3)
        assert scored.logprob == pytest.approx(row.max().item(), abs=1e-3)


@pytest.mark.parametrize("name", ["rand-llama-untied", "rand-gemma3", "rand-gpt2"])
def test_crowd_equals_alone(checkpoint, name):
    """Sixteen very different requests at once are each answered as if they were alone."""
    path = checkpoint(name)
    settings = [{"max_tokens": 3 + 2 * i, "ignore_eos": i % 2 == 0} for i in range(16)]
    crowd = prompts(16)
    requests = [
        make_request(tokens, logprobs=0, **params)
        for tokens, params in zip(crowd, settings, strict=True)
    ]
    together = run(load_engine(path).engine, requests)
    for tokens, params, result in zip(crowd, settings, together, strict=True):
        assert_same(result, alone(path, tokens, **params))


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunked_equals_whole(checkpoint, chunk):
    """A prompt computed in chunks of any size gives the same answer."""
    path = checkpoint("rand-llama-tied")
    tokens = prompts(1, longest=90)[0] * 2
    engine = load_engine(path, max_num_batched_tokens=chunk).engine
    assert_same(run(engine, [make_request(tokens, logprobs=0)])[0], alone(path, tokens))


def test_cached_prefix_equals_recomputed(checkpoint):
    """A prompt whose beginning is cached is answered as if it were computed anew."""
    path = checkpoint("rand-llama-untied")
    engine = load_engine(path).engine
    first = [5 * i % 256 for i in range(70)]
    for tokens in (first, first, [*first, 1, 2, 3], first[:33] + [9] * 20):
        result = run(engine, [make_request(tokens, logprobs=0)])[0]
        assert_same(result, alone(path, tokens))
    assert result.last is not None
    assert result.last.num_cached_tokens == 32


def test_prefix_cache_can_be_declined(checkpoint):
    """A request that declines cached prefixes, or has another salt, finds none."""
    engine = load_engine(checkpoint("rand-llama-untied")).engine
    tokens = list(range(64))
    settings = [{}, {}, {"prefix_cache": False}, {"cache_salt": "other"}]
    cached = [
        run(engine, [make_request(tokens, **params)])[0].last.num_cached_tokens
        for params in settings
    ]
    assert cached == [0, 48, 0, 0]


def test_preempted_equals_undisturbed(checkpoint):
    """Requests that had to give way and be computed again are answered as if they had not."""
    path = checkpoint("rand-llama-untied")
    per_token = 2 * 3 * 2 * 16 * 4
    loaded = load_engine(path, kv_cache_memory=17 * 16 * per_token, max_model_len=160)
    crowd = prompts(4, longest=40)
    requests = [
        make_request(
            tokens, max_tokens=100, ignore_eos=True, logprobs=0, prompt_logprobs=0 if i else None
        )
        for i, tokens in enumerate(crowd)
    ]
    results = run(loaded.engine, requests)
    assert loaded.engine.scheduler.num_preemptions > 0
    for tokens, result in zip(crowd, results, strict=True):
        assert_same(result, alone(path, tokens, max_tokens=100, ignore_eos=True))
        if result.prompt_logprobs is not None:
            assert len(result.prompt_logprobs) == len(tokens)
    loaded.engine.scheduler.manager.check_integrity()
    assert loaded.engine.scheduler.manager.usage == 0


def test_seed_decides_whoever_else_runs(checkpoint):
    """A seeded request draws the same tokens alone and in company; another seed draws others."""
    path = checkpoint("rand-llama-tied")
    tokens = list(b"once upon")
    params = {"temperature": 1.0, "max_tokens": 24, "ignore_eos": True}
    lonely = alone(path, tokens, seed=1234, **params)
    engine = load_engine(path).engine
    others = [make_request(p, seed=i, **params) for i, p in enumerate(prompts(4))]
    crowded = run(engine, [make_request(tokens, seed=1234, logprobs=0, **params), *others])[0]
    assert_same(crowded, lonely)
    assert alone(path, tokens, seed=1235, **params).token_ids != lonely.token_ids
    assert alone(path, tokens, seed=1234, choice=1, **params).token_ids != lonely.token_ids


def test_end_tokens(script_gpt2):
    """Every end token of the checkpoint ends a text, unless the request ignores them."""
    engine = load_engine(script_gpt2).engine
    prompt = checkpoints.script_prompt(3)
    stopped, ignoring = run(
        engine,
        [
            make_request(prompt, max_tokens=60),
            make_request(prompt, max_tokens=60, ignore_eos=True),
        ],
    )
    assert stopped.finish_reason is FinishReason.STOP
    assert stopped.text == "aab aaab ab EN END"
    assert "never" in ignoring.text
    assert ignoring.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (("END-OF-LINE",), "Owl 🦉 says: "),
        (("-OF",), "Owl 🦉 says: END"),
        (("done!",), "Owl 🦉 says: END-OF-LINE\nnext é漢字 done"),
    ],
)
def test_stop_strings(script_gpt2, stop, text):
    """Text ends where a stop string begins, and what was held back for one is released."""
    engine = load_engine(script_gpt2).engine
    result = run(engine, [make_request(checkpoints.script_prompt(0), max_tokens=60, stop=stop)])[0]
    assert (result.text, result.finish_reason) == (text, FinishReason.STOP)


def test_non_finite_logits_end_only_their_request(checkpoint, monkeypatch):
    """A request whose logits are not finite ends with an error; its neighbour is unharmed."""
    path = checkpoint("rand-llama-tied")
    loaded = load_engine(path)
    submit = loaded.engine._runner.submit

    def spoiled(batch):
        output = submit(batch).result()
        logits = output.logits.clone()
        if len(logits) == 2:
            logits[0] = torch.nan
        return Ready(output._replace(logits=logits))

    monkeypatch.setattr(loaded.engine._runner, "submit", spoiled)
    broken, sound = run(loaded.engine, [make_request([1]), make_request([3], logprobs=0)])
    assert broken.finish_reason is FinishReason.ERROR
    assert "finite" in broken.last.error
    assert_same(sound, alone(path, [3]))


def test_fault_in_one_output_ends_only_that_request(checkpoint, monkeypatch):
    """A fault while one request's text is made ends that request; its neighbour is unharmed."""
    path = checkpoint("rand-llama-tied")
    loaded = load_engine(path)
    requests = [make_request([1, 2], request_id="doomed"), make_request([3], logprobs=0)]
    advance = loaded.engine._output_processor._advance

    def faulty(request, token_id, logprobs):
        if request.request_id == "doomed" and request.num_output_tokens == 2:
            raise RuntimeError("injected")
        return advance(request, token_id, logprobs)

    monkeypatch.setattr(loaded.engine._output_processor, "_advance", faulty)
    broken, sound = run(loaded.engine, requests)
    assert broken.finish_reason is FinishReason.ERROR
    assert len(broken.token_ids) == 2
    assert_same(sound, alone(path, [3]))
    assert loaded.engine.scheduler.manager.usage == 0


def test_scoring_without_scores_ends(checkpoint):
    """A request for no token and no scores ends once its prompt is computed."""
    engine = load_engine(checkpoint("rand-llama-tied")).engine
    result = run(engine, [make_request([1, 2, 3], max_tokens=0)])[0]
    assert (result.token_ids, result.finish_reason) == ([], FinishReason.LENGTH)


def test_abort_frees_everything(checkpoint):
    """An aborted request says nothing more and gives back its part of the cache."""
    engine = load_engine(checkpoint("rand-llama-tied")).engine
    engine.add(make_request([1] * 40, request_id="gone", max_tokens=50))
    engine.step()
    assert engine.scheduler.manager.usage > 0
    engine.abort("gone")
    engine.abort("never known")
    assert not engine.has_work
    assert engine.step() == []
    assert engine.scheduler.manager.usage == 0


def test_nothing_is_copied_to_grow(checkpoint):
    """While a request grows, its blocks and the pool stay where they are."""
    engine = load_engine(checkpoint("rand-llama-tied")).engine
    storage = engine._runner._executor.pool.storage.data_ptr()
    request = make_request([1] * 20, max_tokens=60, ignore_eos=True)
    engine.add(request)
    blocks = []
    while engine.has_work:
        engine.step()
        if request.region is not None:
            blocks.append(list(request.region.block_ids))
    assert engine._runner._executor.pool.storage.data_ptr() == storage
    assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(blocks))


@pytest.mark.parametrize("name", ["rand-llama-untied", "rand-gemma3", "rand-gpt2"])
def test_answers_without_the_cache_are_the_same(checkpoint, name):
    """Recomputing the whole sequence for every token brings the tokens that the cache brings."""
    path = checkpoint(name)
    prompt = list(b"The cache holds")
    engine = load_engine(path, max_num_batched_tokens=11).engine
    requests = [
        make_request(prompt, logprobs=0, max_tokens=30, ignore_eos=True, use_cache=use_cache)
        for use_cache in (True, False)
    ]
    cached, uncached = run(engine, requests)
    assert_same(cached, uncached)
    assert_same(cached, alone(path, prompt, max_tokens=30, ignore_eos=True))


def test_a_request_whose_prompt_cannot_be_scored_ends_once(checkpoint, monkeypatch):
    """It fails in the step that also chooses its first token, and says nothing after its error."""
    engine = load_engine(checkpoint("rand-llama-untied")).engine
    slices = engine._runner.logit_slices

    def not_finite(hidden, rows):
        for part, logits in slices(hidden, rows):
            yield part, torch.full_like(logits, torch.nan)

    monkeypatch.setattr(engine._runner, "logit_slices", not_finite)
    engine.add(make_request(list(b"abcd"), prompt_logprobs=0, max_tokens=6))
    outputs = engine.step()
    assert [output.finish_reason for output in outputs] == [FinishReason.ERROR]
    assert not engine.has_work


def test_attention_weights_disturb_nobody(checkpoint):
    """Maps made between steps are distributions and leave a running request's answer alone."""
    path = checkpoint("rand-llama-untied")
    engine = load_engine(path).engine
    engine.add(make_request(list(b"abcd"), logprobs=0, max_tokens=6))
    outputs = engine.step()
    weights = engine.attention_weights(list(b"some other text"), layer=1, head=2)
    assert [sum(row) for row in weights] == pytest.approx([1.0] * 15, abs=1e-5)
    while engine.has_work:
        outputs += engine.step()
    (result,) = collect(outputs).values()
    assert_same(result, alone(path, list(b"abcd"), max_tokens=6))


CONTINUED = {
    "greedy": {"logprobs": 3},
    "seeded": {"temperature": 0.9, "seed": 7, "choice": 2, "top_p": 0.9},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "min_tokens": 20},
    "no cache": {"use_cache": False, "logprobs": 0},
    "scored": {"prompt_logprobs": 0, "logprobs": 0},
}


@pytest.mark.parametrize("params", CONTINUED.values(), ids=CONTINUED)
def test_another_engine_goes_on_behind_earlier_tokens(checkpoint, params):
    """An answer cut anywhere goes on in another engine with the same bits, and is said once."""
    path = checkpoint("rand-llama-untied")
    (prompt,) = prompts(1, longest=60)
    outputs = load_engine(path).engine.generate([make_request(prompt, max_tokens=24, **params)])
    whole = collect(outputs)[outputs[0].request_id]
    other = load_engine(path).engine
    for cut in (1, 2, 9, 23):
        earlier = tuple(whole.token_ids[:cut])
        (rest,) = run(
            other, [make_request(prompt, max_tokens=24, earlier_token_ids=earlier, **params)]
        )
        assert rest.token_ids == whole.token_ids[cut:]
        assert rest.logprobs == whole.logprobs[cut:]
        assert "".join(output.text for output in outputs[:cut]) + rest.text == whole.text
        assert rest.last._replace(request_id="", num_cached_tokens=0) == whole.last._replace(
            request_id="", num_cached_tokens=0
        )
        assert rest.prompt_logprobs is None


@pytest.mark.parametrize("stop", ["END-OF", "next é"])
def test_a_stop_string_may_begin_in_the_earlier_tokens(script_gpt2, stop):
    """What was held back as a possible stop is still held back where the answer goes on."""
    engine = load_engine(script_gpt2).engine
    outputs = engine.generate([make_request([0], max_tokens=60, stop=(stop,))])
    token_ids = [id_ for output in outputs for id_ in output.token_ids]
    for cut in range(1, len(token_ids)):
        request = make_request(
            [0], max_tokens=60, stop=(stop,), earlier_token_ids=tuple(token_ids[:cut])
        )
        rest = engine.generate([request])
        texts = [output.text for output in outputs[:cut] + rest]
        assert "".join(texts) == "".join(output.text for output in outputs)
        assert rest[-1].stop_reason == stop


def test_a_grammar_follows_the_earlier_tokens(checkpoint):
    """A constrained answer goes on where it was; tokens that break it end this request alone."""
    loaded = load_engine(checkpoint("rand-llama-untied"))
    grammar = loaded.grammars.compile(GrammarSource("start: /[0-9]{3}-[a-f]{5}-[0-9]{4}/"))
    whole, *_ = run(loaded.engine, [make_request([5], max_tokens=40, grammar=grammar.copy())])
    assert whole.text[3] == "-"
    for cut in (1, 4, 8):
        request = make_request(
            [5], max_tokens=40, grammar=grammar.copy(), earlier_token_ids=whole.token_ids[:cut]
        )
        (rest,) = run(loaded.engine, [request])
        assert rest.token_ids == whole.token_ids[cut:]
    request = make_request([5], grammar=grammar.copy(), earlier_token_ids=tuple(b"x"))
    (refused,) = run(loaded.engine, [request])
    assert refused.finish_reason is FinishReason.REFUSED
    assert not loaded.engine.has_work


def test_an_answer_that_had_ended_is_not_continued(script_gpt2):
    """Earlier tokens that end the request say that somebody lost its end."""
    engine = load_engine(script_gpt2).engine
    request = make_request([0], max_tokens=2, earlier_token_ids=tuple(b"Ow"))
    (refused,) = run(engine, [request])
    assert refused.finish_reason is FinishReason.ERROR
    assert not engine.has_work


def short_of_memory(engine, monkeypatch, *, fits) -> None:
    """Let steps run out of the device's memory unless `fits(batch)`."""
    submit = engine._runner.submit

    def limited(batch):
        if not fits(batch):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return submit(batch)

    monkeypatch.setattr(engine._runner, "submit", limited)


def test_steps_are_halved_when_memory_runs_out(checkpoint, monkeypatch):
    """A step that does not fit is computed in two, and its requests get the same answers."""
    path = checkpoint("rand-llama-tied")
    engine = load_engine(path, max_num_batched_tokens=64, max_num_seqs=4).engine
    short_of_memory(engine, monkeypatch, fits=lambda batch: batch.num_tokens <= 32)
    prompts_ = [list(range(50)), [3] * 40]
    found = run(engine, [make_request(one, logprobs=0) for one in prompts_])
    for result, prompt in zip(found, prompts_, strict=True):
        assert_same(result, alone(path, prompt))


def test_memory_that_stays_short_ends_the_newest_prompt_only(checkpoint, monkeypatch):
    """Who decodes goes on undisturbed; the prompt that cannot be computed ends with an error."""
    path = checkpoint("rand-llama-tied")
    loaded = load_engine(path)
    engine = loaded.engine
    short_of_memory(engine, monkeypatch, fits=lambda batch: batch.num_tokens <= 4)
    first = make_request([5, 6], logprobs=0, max_tokens=20, arrival_time=1.0)
    engine.add(first)
    outputs = [*engine.step(), *engine.step()]
    engine.add(make_request([7] * 30, request_id="large", arrival_time=2.0))
    while engine.has_work:
        outputs += engine.step()
    results = collect(outputs)
    assert results["large"].finish_reason is FinishReason.ERROR
    assert "out of memory" in results["large"].last.error
    assert_same(results[first.request_id], alone(path, [5, 6], max_tokens=20))
    assert engine.scheduler.manager.usage == 0
    engine.scheduler.manager.check_integrity()
