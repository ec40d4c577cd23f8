"""Constrained requests fit their grammars in any company, which notices nothing of it."""

import json

import checkpoints
import jsonschema
import pytest
from engines import load_engine, make_request, run

from server.api.structured_output.schema_preparation import prepare_schema
from server.engine.grammars.grammar import GrammarCompiler, GrammarSource
from server.engine.sampling.token_masks import AllowedTokens, TokenMasks
from server.request import FinishReason

SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "yy", 3]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
}
GRAMMAR = GrammarSource("start: %json " + json.dumps(prepare_schema(SCHEMA)))
HOT = {"temperature": 2.0, "max_tokens": 60}
FREE = {"temperature": 1.0, "max_tokens": 40, "ignore_eos": True, "logprobs": 0}


@pytest.fixture(scope="module")
def path(checkpoint):
    return checkpoint("rand-llama-tied")


@pytest.fixture(scope="module")
def loaded(path):
    return load_engine(path)


@pytest.fixture(scope="module")
def compiler(loaded) -> GrammarCompiler:
    return compiler_for(loaded)


def compiler_for(loaded) -> GrammarCompiler:
    info = loaded.info
    return GrammarCompiler(
        loaded.tokenizer, vocab_size=info.vocab_size, eos_token_ids=info.eos_token_ids
    )


def constrained(compiler, seed, source=GRAMMAR, **params):
    request = make_request([1, 2, seed], seed=seed, **(HOT | params))
    request.grammar = compiler.compile(source)
    return request


def test_hot_random_models_write_what_the_schema_says(loaded, compiler):
    """Twenty seeds end with "stop", and every text validates."""
    results = run(loaded.engine, [constrained(compiler, seed) for seed in range(20)])
    assert {result.finish_reason for result in results} == {FinishReason.STOP}
    for result in results:
        jsonschema.validate(json.loads(result.text), SCHEMA)
    assert len({result.text for result in results}) > 3


def test_company_changes_nothing(path, loaded, compiler):
    """Constrained and free requests in one batch give bitwise what each gives alone."""

    def free(seed):
        return make_request([5, 6, seed], seed=seed, **FREE)

    together = run(
        loaded.engine,
        [request for seed in range(6) for request in (constrained(compiler, seed), free(seed))],
    )
    for seed in range(6):
        alone = [
            run(load_engine(path).engine, [one])[0]
            for one in (constrained(compiler, seed), free(seed))
        ]
        for before, after in zip(alone, together[2 * seed : 2 * seed + 2], strict=True):
            assert before.token_ids == after.token_ids
            assert before.text == after.text
            assert before.logprobs == after.logprobs


def test_preemption_loses_nothing(path):
    """Requests that give way and come back continue their texts where they were."""
    # Blocks for a few requests only: the longer texts push each other out.
    loaded = load_engine(path, kv_cache_memory=2**17, max_num_seqs=8)
    compiler = compiler_for(loaded)
    source = GrammarSource("start: /[a-z]{100}/")
    requests = [
        constrained(compiler, seed, source, max_tokens=120, temperature=1.0) for seed in range(8)
    ]
    results = run(loaded.engine, requests)
    assert loaded.engine.scheduler.num_preemptions > 0
    for result in results:
        assert len(result.text) == 100
        assert result.text.isascii()
        assert result.text.islower()


def test_a_text_cut_off_by_max_tokens_says_so(loaded, compiler):
    """Nothing pretends to be complete; but a text that is just complete is."""
    source = GrammarSource("start: /a{8}/")
    short, exact = run(
        loaded.engine,
        [constrained(compiler, 0, source, max_tokens=size) for size in (7, 8)],
    )
    assert (short.text, short.finish_reason) == ("a" * 7, FinishReason.LENGTH)
    assert (exact.text, exact.finish_reason) == ("a" * 8, FinishReason.STOP)


def test_ignore_eos_and_min_tokens_do_not_outlive_the_grammar(loaded, compiler):
    """Where the grammar ends, the text ends."""
    source = GrammarSource('start: "ab" | "cd"')
    for params in ({"ignore_eos": True}, {"min_tokens": 30}):
        result = run(loaded.engine, [constrained(compiler, 3, source, **params)])[0]
        assert result.text in ("ab", "cd")
        assert result.finish_reason is FinishReason.STOP


def test_log_probabilities_are_the_model_s_own(path, loaded, compiler):
    """Constrained tokens are scored as the free model would, finite and not renormalised."""
    request = constrained(compiler, 1, logprobs=3, temperature=0.0)
    prompt = list(request.token_ids)
    result = run(loaded.engine, [request])[0]
    expected = checkpoints.reference_logprobs(
        checkpoints.reference(path), prompt + result.token_ids
    )
    for place, scored in enumerate(result.logprobs, len(prompt) - 1):
        assert scored.logprob == pytest.approx(expected[place, scored.token_id].item(), abs=1e-3)
        assert len(scored.top) == 3


def test_a_grammar_that_fails_ends_its_own_request_only(loaded, compiler):
    """The others of the batch go on."""
    broken, fine = constrained(compiler, 0), constrained(compiler, 1)
    broken.grammar._matcher.consume_token(ord("!"))  # now in an error state
    first, second = run(loaded.engine, [broken, fine])
    assert first.finish_reason is FinishReason.REFUSED
    assert "structured output" in first.last.error
    jsonschema.validate(json.loads(second.text), SCHEMA)


def test_free_batches_have_no_mask():
    """Nothing is computed for them."""
    masks = TokenMasks(10)
    masks.begin([make_request([1])])
    assert masks.finish() == AllowedTokens()
