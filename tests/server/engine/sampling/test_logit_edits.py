"""Penalties, biases and bans against transformers and plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import NoBadWordsLogitsProcessor, RepetitionPenaltyLogitsProcessor

from server.engine.sampling.logit_edits import LogitEdits, apply_edits
from server.request import Request, SamplingParams

VOCAB_SIZE = 300


def _request(prompt: list[int], **params: Any) -> Request:
    return Request(
        request_id="r", token_ids=list(prompt), params=SamplingParams(max_tokens=99, **params)
    )


def _logits(rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(0)) * 3


def _apply(*edits: LogitEdits) -> torch.Tensor:
    logits = _logits(len(edits))
    apply_edits(logits, range(len(edits)), edits)
    return logits


def test_repetition_penalty_equals_transformers_as_the_sequence_grows() -> None:
    """Prompt and output tokens are penalised once each, step after step as transformers does."""
    request = _request([5, 7, 7, 299], repetition_penalty=1.5)
    edits = LogitEdits(request, frozenset())
    reference = RepetitionPenaltyLogitsProcessor(1.5)
    generator = np.random.default_rng(0)
    for _ in range(100):
        expected = reference(torch.tensor([request.token_ids]), _logits())
        assert torch.equal(_apply(edits), expected)
        request.token_ids += generator.integers(VOCAB_SIZE, size=2).tolist()


def test_presence_and_frequency_look_at_the_output_only() -> None:
    """A token costs presence once and frequency each time it was generated; prompts are free."""
    request = _request([1, 2, 3, 3], presence_penalty=0.5, frequency_penalty=-0.25)
    edits = LogitEdits(request, frozenset())
    assert torch.equal(_apply(edits), _logits())
    request.token_ids += [3, 4, 4, 4]
    expected = _logits()
    expected[0, 3] -= 0.5 - 0.25
    expected[0, 4] -= 0.5 - 3 * 0.25
    torch.testing.assert_close(_apply(edits), expected)


def test_penalties_are_taken_in_order_and_then_biased() -> None:
    """The repetition penalty scales the model's logit, the others and the bias are added after."""
    request = _request(
        [8],
        repetition_penalty=2.0,
        presence_penalty=1.0,
        frequency_penalty=0.5,
        logit_bias={9: 3.0},
    )
    request.token_ids += [9, 9]
    edited = _apply(LogitEdits(request, frozenset()))
    exact = _logits().double()[0]
    for token_id in (8, 9):
        exact[token_id] *= 2.0 if exact[token_id] < 0 else 0.5
    exact[9] += -1.0 - 2 * 0.5 + 3.0
    torch.testing.assert_close(edited[0].double(), exact, rtol=1e-6, atol=1e-6)


def test_end_tokens_are_banned_until_min_tokens_are_generated() -> None:
    """The end tokens are impossible before min_tokens, untouched after."""
    request = _request([1], min_tokens=2)
    edits = LogitEdits(request, frozenset({0, 299}))
    for _ in range(2):
        expected = _logits()
        expected[0, [0, 299]] = -torch.inf
        assert torch.equal(_apply(edits), expected)
        request.token_ids.append(0)
    assert torch.equal(_apply(edits), _logits())


WORDS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=6)


@given(WORDS, st.lists(st.integers(0, 3), max_size=12))
def test_bad_words_equal_transformers(words: list[list[int]], output: list[int]) -> None:
    """The last token of a word is banned exactly where the others were just generated."""
    request = _request([0, 1, 2, 3], bad_words=tuple(map(tuple, words)))
    request.token_ids += output
    reference = NoBadWordsLogitsProcessor(words, eos_token_id=None)
    # What stands in the prompt is no part of a word that is generated.
    expected = reference(torch.tensor([output], dtype=torch.long), _logits())
    assert torch.equal(_apply(LogitEdits(request, frozenset())), expected)


def test_only_allowed_tokens_can_be_chosen() -> None:
    """All other logits are impossible; biases and bans work on what is left."""
    request = _request(
        [1], allowed_token_ids=(3, 7, 250), logit_bias={3: 2.0, 9: 5.0}, bad_words=((7,),)
    )
    edited = _apply(LogitEdits(request, frozenset()))
    expected = np.full(VOCAB_SIZE, -np.inf, np.float32)
    logits = _logits()[0].numpy()
    expected[3], expected[250] = logits[3] + 2, logits[250]
    np.testing.assert_array_equal(edited[0].numpy(), expected)


def test_rows_are_edited_each_for_itself() -> None:
    """A row's edits are bitwise those it has alone, and change no other row."""
    requests = [
        _request(list(range(200)), repetition_penalty=1.3),
        _request([4], logit_bias={0: -100.0, 299: 100.0}),
        _request([4, 5], frequency_penalty=2.0, min_tokens=9, allowed_token_ids=(4, 6, 299)),
    ]
    for request in requests:
        request.token_ids += [4, 4, 6]
    edits = [LogitEdits(request, frozenset({2})) for request in requests]
    together = _logits(5)
    apply_edits(together, [0, 2, 4], edits)
    for row, edit in zip([0, 2, 4], edits, strict=True):
        alone = _logits(5)[row : row + 1].contiguous()
        apply_edits(alone, [0], [edit])
        assert torch.equal(together[row], alone[0])
    assert torch.equal(together[[1, 3]], _logits(5)[[1, 3]])


def test_neutral_parameters_need_no_edits() -> None:
    """Only a penalty, a bias or a ban asks for edits."""
    assert not LogitEdits.needed(SamplingParams(max_tokens=1, temperature=0.3, top_p=0.5))
    for params in (
        {"logit_bias": {1: 1.0}},
        {"min_tokens": 1},
        {"repetition_penalty": 1.1},
        {"bad_words": ((1,),)},
        {"allowed_token_ids": (1,)},
    ):
        assert LogitEdits.needed(SamplingParams(max_tokens=1, **params))
