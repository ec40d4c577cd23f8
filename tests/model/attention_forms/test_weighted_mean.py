"""The weighted mean against torch's softmax, and rows that see nothing."""

from __future__ import annotations

import torch

from model.attention_forms.weighted_mean import weighted_mean


def test_weights_are_the_softmax_of_the_scores():
    """Without a mask the weights are torch's softmax, and the output their mean of the values."""
    scores, v = torch.randn(2, 3, 5), torch.randn(2, 5, 4)
    out, weights = weighted_mean(scores, v)
    wanted = torch.nn.functional.softmax(scores, dim=-1)
    torch.testing.assert_close(weights, wanted)
    torch.testing.assert_close(out, torch.einsum("bts,bsd->btd", wanted, v))


def test_a_query_that_sees_nothing_gets_zeros_and_harms_no_gradient():
    """A wholly hidden row is zero, not NaN, and so is what it sends back."""
    scores = torch.randn(2, 3, requires_grad=True)
    mask = torch.tensor([[True, False, True], [False, False, False]])
    out, weights = weighted_mean(scores, torch.randn(3, 4), mask=mask)
    assert weights[1].tolist() == [0.0, 0.0, 0.0]
    assert out[1].tolist() == [0.0] * 4
    out.sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert scores.grad[1].tolist() == [0.0] * 3
