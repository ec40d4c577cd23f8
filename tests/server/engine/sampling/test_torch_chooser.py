"""server.engine.sampling.torch_chooser: choosing by torch, row by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engines import make_request

from server.engine.sampling.logit_edits import NOTHING_ALLOWED
from server.engine.sampling.logprobs import NOT_FINITE
from server.engine.sampling.torch_chooser import TorchChooser

VOCAB_SIZE = 300


def logits_of(rows: int) -> torch.Tensor:
    return torch.randn(rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(1)) * 3


def choose(logits, requests, allowed=None):
    chooser = TorchChooser()
    chooser.begin(requests, {})
    return chooser.choose(logits, allowed=allowed)


def mask_of(rows: list[set[int]]) -> np.ndarray:
    """Bit i of word w for token 32 w + i."""
    words = np.zeros((len(rows), -(-VOCAB_SIZE // 32)), np.int64)
    for row, tokens in enumerate(rows):
        for token in tokens:
            words[row, token // 32] |= 1 << token % 32
    return words.astype(np.uint32).view(np.int32)


def test_the_likeliest_token_is_chosen_and_of_equals_the_first():
    """Greedy choice is argmax, ties by lower id, and leaves the logits as they are."""
    logits = logits_of(2)
    logits[1, [7, 250]] = 99.0
    before = logits.clone()
    assert choose(logits, [make_request([1]), make_request([2])]) == (
        [int(logits[0].argmax()), 7],
        {},
    )
    assert torch.equal(logits, before)


def test_only_allowed_tokens_are_chosen():
    """A mask holds greedy and random rows alike; a row without any fails by itself."""
    requests = [
        make_request([1]),
        *(make_request([1], temperature=1.5, seed=seed) for seed in range(20)),
        make_request([1]),
    ]
    allowed = mask_of([{3, 64, 299}] * 21 + [set()])
    tokens, failed = choose(logits_of(22), requests, allowed)
    assert set(tokens[:21]) <= {3, 64, 299}
    assert len(set(tokens[1:21])) > 1
    assert failed == {21: NOTHING_ALLOWED}


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_row_that_is_not_finite_fails_alone(value):
    """Its neighbour gets its token."""
    logits = logits_of(2)
    logits[0, 9] = value
    tokens, failed = choose(logits, [make_request([1]), make_request([2])])
    assert failed == {0: NOT_FINITE}
    assert tokens[1] == int(logits[1].argmax())


def test_cuts_leave_the_tokens_that_numpy_leaves():
    """top_k, then the nucleus of top_p: what is drawn over many seeds is exactly what stays."""
    logits = logits_of(1)
    probs = torch.softmax(logits[0].double(), -1).numpy()
    order = np.argsort(-probs)[:12]
    mass = np.cumsum(probs[order]) / probs[order].sum()
    stays = set(order[: int(np.searchsorted(mass, 0.8)) + 1].tolist())
    requests = [
        make_request([1], temperature=1.0, top_k=12, top_p=0.8, seed=seed) for seed in range(2000)
    ]
    tokens, failed = choose(logits.expand(2000, -1).contiguous(), requests)
    assert not failed
    assert set(tokens) == stays
