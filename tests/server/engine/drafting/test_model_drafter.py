"""ModelDrafter: a smaller model that guesses what the served one will say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from engines import Result, load_engine, make_request, run

from server.engine.drafting.draft_budget import DraftBudget
from server.engine.drafting.model_drafter import MAX_CATCH_UP_TOKENS
from server.engine.loaded_engine import LoadedEngine
from server.errors import ConfigurationError

NAME, OTHER = "rand-llama-tied", "rand-llama-untied"
KINDS: list[dict] = [
    {"max_tokens": 40, "ignore_eos": True, "logprobs": 2},
    {"max_tokens": 40, "ignore_eos": True, "temperature": 1.0, "seed": 3, "logprobs": 0},
    {"max_tokens": 25, "temperature": 0.9, "top_p": 0.9, "seed": 4, "logprobs": 0},
    {"max_tokens": 40, "ignore_eos": True, "frequency_penalty": 0.6, "logprobs": 1},
    {"max_tokens": 1, "logprobs": 0},
]


def drafting_engine(served: Path, draft: Path, **options: object) -> LoadedEngine:
    """An engine whose guesses cost nothing, so that it guesses as long as they come true."""
    loaded = load_engine(served, speculative="model", draft_model=str(draft), **options)
    loaded.engine.scheduler.drafter._budget = DraftBudget(6.0)
    return loaded


def answers(loaded: LoadedEngine, *, prompt_length: int = 30) -> list[tuple]:
    """All kinds at once, each with a prompt of its own."""
    requests = [
        make_request([index, *range(7, 7 + prompt_length)], **kind)
        for index, kind in enumerate(KINDS)
    ]
    return [_facts(result) for result in run(loaded.engine, requests)]


def _facts(result: Result) -> tuple:
    return result.token_ids, result.text, result.logprobs, result.finish_reason


@pytest.mark.parametrize("draft", [NAME, OTHER])
@pytest.mark.parametrize("options", [{}, {"kv_cache_memory": 160_000, "max_model_len": 90}])
def test_no_answer_changes(checkpoint, draft, options):
    """Whether the smaller model is right or has no idea, the answers have the same bits."""
    expected = answers(load_engine(checkpoint(NAME)))
    loaded = drafting_engine(checkpoint(NAME), checkpoint(draft), **options)
    assert answers(loaded) == expected
    assert answers(loaded) == expected  # its own prefix cache knows the prompts by now
    drafter = loaded.engine.scheduler.drafter
    assert loaded.timeline.totals.num_drafted_tokens > 0
    assert drafter._manager.usage == 0
    drafter._manager.check_integrity()
    loaded.engine.scheduler.manager.check_integrity()


def test_a_model_that_agrees_is_always_right(checkpoint):
    """The same model guesses every token, drawn ones too, so that few steps are left."""
    loaded = drafting_engine(checkpoint(NAME), checkpoint(NAME))
    for kind in KINDS[:3]:
        before = loaded.timeline.totals
        run(loaded.engine, [make_request([1, 2, 3], **kind)])
        totals = loaded.timeline.totals
        assert totals.num_accepted_tokens == totals.num_drafted_tokens
        assert totals.num_steps - before.num_steps < kind["max_tokens"] / 2


def test_a_long_prompt_is_followed_over_several_steps(checkpoint):
    """No step computes more than a bounded number of tokens behind its requests."""
    served = checkpoint(NAME)
    length = MAX_CATCH_UP_TOKENS - 1
    expected = answers(load_engine(served), prompt_length=length)
    loaded = drafting_engine(served, served)
    passes: list[int] = []
    executor = loaded.engine.scheduler.drafter._executor
    submit = executor.submit
    executor.submit = lambda batch: passes.append(len(batch.input_ids)) or submit(batch)
    assert answers(loaded, prompt_length=length) == expected
    assert max(passes) <= MAX_CATCH_UP_TOKENS
    assert loaded.timeline.totals.num_accepted_tokens > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"speculative": "model"}, "needs --draft-model"),
        ({"speculative": "ngram", "draft_model": NAME}, "is for --speculative model"),
        ({"draft_model": NAME}, r"got --speculative off"),
        (
            {
                "speculative": "model",
                "draft_model": NAME,
                "attention_window": 64,
                "attention_sinks": 16,
            },
            "use --speculative ngram",
        ),
    ],
)
def test_what_does_not_fit_together_ends_the_start(checkpoint, options, words):
    """Each fault of the options is one sentence that names them."""
    if "draft_model" in options:
        options = options | {"draft_model": str(checkpoint(options["draft_model"]))}
    with pytest.raises(ConfigurationError, match=words):
        load_engine(checkpoint(NAME), **options)


def test_a_model_of_another_vocabulary_is_refused(checkpoint, checkpoint_copy):
    """Where an id means something else to the smaller model, both meanings are named."""
    other = checkpoint_copy(NAME)
    path = other / "tokenizer.json"
    described = json.loads(path.read_text())
    vocabulary = described["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    path.write_text(json.dumps(described))
    with pytest.raises(ConfigurationError, match=r"token 97 is 'b' there and 'a' here"):
        drafting_engine(checkpoint(NAME), other)
