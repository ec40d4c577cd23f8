"""Reported log-probabilities against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from server.engine.sampling import logprobs as module
from server.engine.sampling.logprobs import LOGPROB_FLOOR, token_logprobs


def _logits(rows: int, vocab_size: int) -> torch.Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(0)) * 5


def _log_softmax(logits: torch.Tensor) -> np.ndarray:
    exact = logits.double().numpy()
    shifted = exact - exact.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def test_logprobs_equal_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chosen and top log-probabilities equal float64's, however the rows are sliced."""
    logits, exact = _logits(9, 1000), _log_softmax(_logits(9, 1000))
    token_ids, num_top = list(range(9)), [0, 1, 20, 5, 5, 2, 20, 0, 3]
    whole = token_logprobs(logits, token_ids, num_top)
    for row, scored in enumerate(whole):
        assert scored.token_id == row
        assert scored.logprob == pytest.approx(exact[row, row], abs=1e-5)
        best = np.argsort(-exact[row])[: num_top[row]]
        assert [token_id for token_id, _ in scored.top] == best.tolist()
        assert [value for _, value in scored.top] == pytest.approx(exact[row, best], abs=1e-5)
    monkeypatch.setattr(module, "_SLICE_ENTRIES", 2500)
    assert token_logprobs(logits, token_ids, num_top) == whole


def test_impossible_tokens_are_finite() -> None:
    """Minus infinity is reported as the floor, for the token as for its alternatives."""
    logits = torch.full((1, 300), -torch.inf)
    logits[0, 7] = 1.0
    (scored,) = token_logprobs(logits, [0], [3])
    assert scored.logprob == LOGPROB_FLOOR
    assert scored.top == ((7, 0.0), (0, LOGPROB_FLOOR), (1, LOGPROB_FLOOR))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_row_that_is_not_finite_cannot_be_scored(value: float) -> None:
    """A NaN or an infinity anywhere in a row is an error, not a number."""
    logits = _logits(3, 300)
    logits[1, 299] = value
    with pytest.raises(ValueError, match="not a number or infinite"):
        token_logprobs(logits, [0, 0, 0], [0, 0, 0])
