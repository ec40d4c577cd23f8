"""The choosing kernel, interpreted, against float64."""

from __future__ import annotations

import interpreted  # noqa: F401 - before anything of model.cuda
import numpy as np
import pytest
import torch
from slow_device import DirectQueue

from model.cuda.device_sampling import DeviceSampling, RowParams
from model.native_abi import CHOSEN, NOT_FINITE, NOTHING_ALLOWED

ROWS, WIDTH = 5, 2100


def params(**columns: object) -> RowParams:
    neutral = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | columns
    types = {"temperature": np.float32, "top_k": np.int32, "top_p": np.float64, "min_p": np.float32}
    return RowParams(**{name: np.full(ROWS, value, types[name]) for name, value in neutral.items()})


def logits(scale: float = 3.0) -> torch.Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(4)) * scale


def sampling(how: RowParams) -> DeviceSampling:
    made = DeviceSampling(WIDTH, device=torch.device("cpu"), queue=DirectQueue())
    made.begin(how)
    return made


def kept(row: np.ndarray, how: RowParams) -> np.ndarray:
    """Probabilities of what top_k, then top_p, then min_p keep, in float64; ties stay."""
    scaled = (row - row.max()) / float(how.temperature[0])
    probs = np.exp(scaled)
    if how.top_k[0]:
        probs[probs < np.sort(probs)[-how.top_k[0]]] = 0
    if how.top_p[0] < 1:
        order = np.sort(probs)[::-1]
        last = np.searchsorted(order.cumsum(), how.top_p[0] * probs.sum() * (1 - 1e-7))
        probs[probs < order[last]] = 0
    probs[probs < how.min_p[0] * probs.max() * (1 - 1e-6)] = 0
    return probs


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"top_k": 1},
        {"top_k": 40, "temperature": 1.3},
        {"top_p": 0.8},
        {"top_k": 200, "top_p": 0.6, "min_p": 0.02},
        {"min_p": 0.1, "temperature": 2.0},
        {"temperature": 1e-30},
    ],
)
def test_draws_equal_float64(columns):
    """The token is the one where float64 sums over what is kept pass the row's number."""
    how, values = params(**columns), logits()
    uniforms = np.array([0.0, 0.3, 0.7, 0.999, 0.5])
    tokens, outcomes = sampling(how).choose(values, uniforms=uniforms, allowed=None)
    assert outcomes == [CHOSEN] * ROWS
    for row, uniform, token in zip(values.double().numpy(), uniforms, tokens, strict=True):
        probs = kept(row, how)
        sums = probs.cumsum() / probs.sum()
        before = sums[token - 1] if token else 0.0
        assert before - 1e-5 <= uniform <= sums[token] + 1e-5
        assert probs[token] > 0


def test_without_temperature_the_first_of_the_largest_is_chosen():
    """Ties go to the lowest id."""
    values = logits().mul_(2).round_()
    tokens, _ = sampling(params(temperature=0.0)).choose(values, uniforms=None, allowed=None)
    assert tokens == values.argmax(-1).tolist()


def test_a_mask_is_obeyed():
    """Only tokens whose bit is set are chosen, and a row without any is told."""
    allowed = np.zeros((ROWS, -(-WIDTH // 32)), np.int32)
    allowed[:4, 3] = 0b1010
    values = logits()
    for temperature in (0.0, 1.0):
        tokens, outcomes = sampling(params(temperature=temperature, top_k=1)).choose(
            values, uniforms=np.full(ROWS, 0.5), allowed=allowed
        )
        best = values[:, [97, 99]].argmax(-1) * 2 + 97
        assert tokens[:4] == best[:4].tolist()
        assert outcomes == [CHOSEN] * 4 + [NOTHING_ALLOWED]


def test_rows_without_numbers_are_told():
    """A NaN, plus infinity, or nothing but minus infinity: each row by itself."""
    values = logits()
    values[1, 2050], values[2, 3], values[3] = torch.nan, torch.inf, -torch.inf
    for temperature in (0.0, 1.0):
        _, outcomes = sampling(params(temperature=temperature)).choose(
            values, uniforms=np.full(ROWS, 0.5), allowed=None
        )
        assert outcomes == [CHOSEN, NOT_FINITE, NOT_FINITE, NOT_FINITE, CHOSEN]
