"""The sampling kernels against float64, and against themselves with another number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.native_abi import CHOSEN
from model.native_library import NativeKernels
from model.native_sampling import CHOICE, NativeSampling

VOCAB_SIZE = 49_152
ROWS = 24


def _logits(width: int, scale: float, seed: int = 0) -> Tensor:
    return torch.randn(ROWS, width, generator=torch.Generator().manual_seed(seed)) * scale


def _choices(**columns: Any) -> NDArray[np.void]:
    choices = np.zeros(ROWS, CHOICE)
    neutral = {"temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0}
    for name, value in {**neutral, **columns}.items():
        choices[name] = value
    choices["uniform"] = np.random.default_rng(1).random(ROWS)
    return choices


def _kept(row: NDArray[np.float64], choice: np.void) -> NDArray[np.float64]:
    """The probabilities (V,) that the cuts leave, in float64, by sorting everything."""
    probs = np.exp((row - row.max()) / choice["temperature"])
    order = np.sort(probs)[::-1]
    if 0 < choice["top_k"] < len(row):
        probs = np.where(probs >= order[choice["top_k"] - 1], probs, 0)
        order = np.sort(probs)[::-1]
    if choice["top_p"] < 1:
        last = np.searchsorted(order.cumsum(), choice["top_p"] * order.sum())
        probs = np.where(probs >= order[min(last, len(order) - 1)], probs, 0)
    return np.where(probs >= float(choice["min_p"]) * probs.max(), probs, 0)


def choose(
    sampling: NativeSampling, logits: Tensor, choices: NDArray[np.void]
) -> tuple[list[int], list[int]]:
    """The tokens, and what became of each row."""
    bound = sampling.bind(logits.contiguous(), choices)
    assert bound.run() == (bound.outcomes != CHOSEN).sum()
    return bound.tokens.tolist(), bound.outcomes.tolist()


@pytest.mark.parametrize("scale", [0.3, 2.0, 6.0])
@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"temperature": 0.6},
        {"top_k": 1},
        {"top_k": 50},
        {"top_k": 5000, "temperature": 1.3},
        {"top_k": 40_000},
        {"top_p": 1e-9},
        {"top_p": 0.9},
        {"top_p": 0.9999, "temperature": 0.8},
        {"min_p": 0.1},
        {"top_k": 64, "top_p": 0.7, "min_p": 0.05, "temperature": 2.0},
        {"top_p": 0.95, "min_p": 0.3},
    ],
)
def test_draws_equal_float64(
    pools: list[NativeKernels], columns: dict[str, Any], scale: float
) -> None:
    """The token is the one where float64 sums over the kept tokens pass the row's number.

    Where the number is closer to a border than rounding may move it, the neighbour will do.
    """
    logits, choices = _logits(VOCAB_SIZE, scale), _choices(**columns)
    tokens, outcomes = choose(NativeSampling(pools[1], VOCAB_SIZE), logits, choices)
    assert not any(outcomes)
    for row, choice, token in zip(logits.double().numpy(), choices, tokens, strict=True):
        sums = _kept(row, choice).cumsum() / _kept(row, choice).sum()
        before = sums[token - 1] if token else 0.0
        assert before - 2e-6 <= choice["uniform"] <= sums[token] + 2e-6
        assert sums[token] - before > 1e-12


@pytest.mark.parametrize("width", [1, 7, 256, 700, VOCAB_SIZE])
def test_the_largest_is_found(pools: list[NativeKernels], width: int) -> None:
    """Without temperature the first of the largest logits is chosen."""
    logits = _logits(width, 1.0).mul_(4).round_()
    tokens, outcomes = choose(NativeSampling(pools[1], width), logits, _choices(temperature=0.0))
    assert not any(outcomes)
    assert tokens == logits.argmax(-1).tolist()


@pytest.mark.parametrize("width", [701, VOCAB_SIZE])
def test_threads_and_company_change_no_bit(pools: list[NativeKernels], width: int) -> None:
    """Tokens and scores of a row are the same with one thread and two, and with half the rows."""
    logits = _logits(width, 3.0)
    choices = _choices(top_p=np.linspace(0.2, 1.2, ROWS), top_k=np.arange(ROWS) % 5 * 9)
    first, second = (NativeSampling(kernels, width) for kernels in pools)
    tokens = choose(first, logits, choices)[0]
    assert choose(second, logits, choices)[0] == tokens
    assert choose(second, logits[5:14], choices[5:14])[0] == tokens[5:14]
    everyone = range(ROWS)
    ids, scores = first.score(logits, tokens, rows=everyone, alternatives=5)
    for rows in (everyone, range(3, 20, 4)):
        others = second.score(logits, [tokens[r] for r in rows], rows=rows, alternatives=5)
        assert (others[0] == ids[rows]).all()
        assert (others[1].view(np.int32) == scores[rows].view(np.int32)).all()


@pytest.mark.parametrize(("width", "alternatives"), [(5, 20), (700, 0), (700, 300), (49_152, 20)])
def test_scores_equal_float64(pools: list[NativeKernels], width: int, alternatives: int) -> None:
    """Log-probabilities are right to 1e-5; the likeliest come in order, equals by lower id."""
    logits = _logits(width, 2.0).mul_(4).round_().div_(4)
    given = [(row * 37) % width for row in range(ROWS)]
    ids, scores = NativeSampling(pools[1], width).score(
        logits, given, rows=range(ROWS), alternatives=alternatives
    )
    exact = logits.double().log_softmax(-1).numpy()
    order = np.argsort(-logits.numpy(), axis=1, kind="stable")[:, :alternatives]
    assert ids[:, 0].tolist() == given
    assert ids[:, 1:].tolist() == order.tolist()
    assert np.abs(scores - np.take_along_axis(exact, ids, 1)).max() < 1e-5


def test_rows_without_numbers_are_told(pools: list[NativeKernels]) -> None:
    """A NaN, plus infinity or nothing else than minus infinity is an outcome, and a NaN score."""
    logits = _logits(701, 1.0)
    logits[3, 700], logits[4, 2], logits[5] = torch.nan, torch.inf, -torch.inf
    logits[6, 1:] = -torch.inf
    sampling = NativeSampling(pools[1], 701)
    for temperature in (0.0, 1.0):
        tokens, outcomes = choose(sampling, logits, _choices(temperature=temperature, top_p=0.9))
        assert np.flatnonzero(outcomes).tolist() == [3, 4, 5]
        assert tokens[6] == 0
    _, scores = sampling.score(logits, [0] * ROWS, rows=range(ROWS), alternatives=2)
    assert np.flatnonzero(np.isnan(scores).any(1)).tolist() == [3, 4, 5]
    assert scores[6].tolist() == [0.0, 0.0, -np.inf]
