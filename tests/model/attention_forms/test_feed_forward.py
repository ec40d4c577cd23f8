"""The feed-forward network against torch.nn.Sequential."""

from __future__ import annotations

import torch
from torch import nn

from model.attention_forms.feed_forward import FeedForward


def test_it_is_two_linear_maps_with_a_relu_between():
    """torch.nn with the same weights gives the same."""
    ours = FeedForward(6, 10, dropout=0.5).eval()
    theirs = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 6))
    theirs.load_state_dict(dict(zip(theirs.state_dict(), ours.state_dict().values(), strict=True)))
    x = torch.randn(2, 3, 6)
    torch.testing.assert_close(ours(x), theirs(x))


def test_dropout_happens_in_training_only():
    """In training two runs differ, in evaluation none does."""
    layer, x = FeedForward(6, 64, dropout=0.5), torch.randn(3, 6)
    assert not torch.equal(layer.train()(x), layer(x))
    assert torch.equal(layer.eval()(x), layer(x))
