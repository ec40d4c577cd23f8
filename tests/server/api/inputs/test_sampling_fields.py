"""server.api.inputs.sampling_fields: how words are spelled in tokens before they are banned."""

from __future__ import annotations

import pytest
from fakes import FakeEngine

from server.api.generation_call import AnswerOptions
from server.api.inputs.sampling_fields import bad_word_ids, sampling_params
from server.api.schemas.requests import CompletionBody, parse
from server.errors import InvalidRequestError

SPELLINGS = {
    "cat": [5], " cat": [6],
    "catalog": [5, 7], " catalog": [6, 7],
    "x": [1], " x": [9, 1],
    "y": [2, 3], " y": [2, 4],
    "": [], " ": [8],
}  # fmt: skip


class Tokenizer:
    """Spells a few words."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return SPELLINGS[text]


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        (["cat"], [(5,), (6,)]),
        (["  cat"], [(5,), (6,)]),
        (["catalog"], [(5, 7), (6, 7)]),
        (["x"], [(1,)]),
        (["y"], [(2, 3)]),
        ([" "], [(8,)]),
        (["x", "cat"], [(1,), (5,), (6,)]),
        ([], []),
    ],
)
def test_words_are_banned_as_vllm_bans_them(words, ids):
    """Bare, and after a space if that is another first token and as many tokens."""
    assert bad_word_ids(words, Tokenizer()) == tuple(ids)


def make(body: dict, **options: object):
    parsed = parse(CompletionBody, {"prompt": "a"} | body)
    return sampling_params(
        parsed, FakeEngine().info, options=AnswerOptions(**options), seed=1, max_tokens=5
    )


def test_allowed_tokens_are_checked_and_each_counts_once():
    """Ids outside the vocabulary are refused by name."""
    assert make({"allowed_token_ids": [7, 3, 7]}).allowed_token_ids == (3, 7)
    assert make({}).allowed_token_ids == ()
    with pytest.raises(InvalidRequestError, match=r"'allowed_token_ids' .* \(got 258\)"):
        make({"allowed_token_ids": [1, 258]})
    with pytest.raises(InvalidRequestError, match="'allowed_token_ids' must not be empty"):
        make({"allowed_token_ids": []})


@pytest.mark.parametrize(
    ("options", "computed"),
    [
        ({}, None),
        ({"logprobs": 3}, None),
        ({"logprobs": 3, "echo": True}, 3),
        ({"prompt_logprobs": 0}, 0),
        ({"logprobs": 3, "echo": True, "prompt_logprobs": 1}, 3),
        ({"logprobs": 1, "echo": True, "prompt_logprobs": 4}, 4),
    ],
)
def test_a_prompt_is_scored_for_whoever_wants_most(options, computed):
    """An echo with log-probabilities and prompt_logprobs share one pass."""
    assert make({}, **options).prompt_logprobs == computed
