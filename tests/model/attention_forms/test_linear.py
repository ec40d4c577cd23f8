"""Linear attention: in parallel, as a recurrence, and as NumPy says it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model.attention_forms.linear import (
    LinearState,
    elu_features,
    linear_attention,
    relu_features,
)


@pytest.mark.parametrize("features", [elu_features, relu_features])
def test_in_parallel_and_as_a_recurrence_it_is_the_same(features):
    """Token by token, a state of fixed size gives what all tokens at once give, to 1e-5."""
    q, k, v = torch.randn(3, 2, 4, 200, 16).unbind()
    parallel = linear_attention(features(q), features(k), v)
    state = LinearState.empty(2, 4, features=16, value_size=16)
    size = state.num_bytes
    steps = [
        state.step(features(q[..., t, :]), features(k[..., t, :]), v[..., t, :]) for t in range(200)
    ]
    torch.testing.assert_close(torch.stack(steps, dim=-2), parallel, atol=1e-5, rtol=1e-5)
    assert state.num_bytes == size == 4 * 2 * 4 * (16 * 16 + 16)


def test_it_is_the_sum_that_the_paper_writes():
    """One query at a time in NumPy and float64 gives the same."""
    q, k, v = torch.randn(7, 5), torch.randn(7, 5), torch.randn(7, 3)

    def mapped(x):
        return np.where(x > 0, x + 1, np.exp(x))

    queries, keys = mapped(q.double().numpy()), mapped(k.double().numpy())
    wanted = [
        sum((queries[i] @ keys[j]) * v[j].double().numpy() for j in range(i + 1))
        / sum(queries[i] @ keys[j] for j in range(i + 1))
        for i in range(7)
    ]
    out = linear_attention(elu_features(q), elu_features(k), v)
    np.testing.assert_allclose(out.numpy(), np.array(wanted), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("features", [elu_features, relu_features])
def test_features_are_positive(features):
    """No weight is negative and no normaliser zero, whatever the scores are."""
    assert (features(torch.linspace(-20, 20, 101)) > 0).all()
