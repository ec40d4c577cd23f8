"""EncoderLayer against torch.nn.TransformerEncoderLayer."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_layers import copy_weights

from model.attention_forms.encoder_layer import EncoderLayer


@pytest.fixture
def layers() -> tuple[EncoderLayer, nn.Module]:
    """Ours and torch's, with the same weights, in training."""
    ours = EncoderLayer(12, 3, intermediate_size=20, dropout=0.3)
    theirs = nn.TransformerEncoderLayer(12, 3, 20, dropout=0.3, batch_first=True)
    copy_weights(ours, theirs)
    return ours, theirs


def test_in_evaluation_it_is_torchs(layers):
    """Padded texts of different lengths give what torch gives, at every real token."""
    ours, theirs = (layer.eval() for layer in layers)
    x, lengths = torch.randn(2, 7, 12), torch.tensor([7, 4])
    padding = torch.arange(7) >= lengths[:, None]
    wanted = theirs(x, src_key_padding_mask=padding)
    out = ours(x, lengths=lengths)
    torch.testing.assert_close(out[0], wanted[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(out[1, :4], wanted[1, :4], atol=1e-5, rtol=1e-5)


def test_in_training_it_drops_as_often_as_torchs(layers):
    """Over many runs the mean output and its spread are torch's, within their own noise."""
    ours, theirs = layers
    x = torch.randn(1, 4, 12)
    with torch.no_grad():
        many = x.expand(4000, -1, -1)
        first, second = ours(many), theirs(many)
    noise = first.std(dim=0) / 4000**0.5
    assert ((first.mean(dim=0) - second.mean(dim=0)).abs() < 6 * noise).all()
    torch.testing.assert_close(first.std(dim=0), second.std(dim=0), rtol=0.1, atol=0.02)
    assert not torch.equal(first[0], first[1])


def test_gradients_are_torchs(layers):
    """With dropout off both send the same back to their input."""
    ours, theirs = (layer.eval() for layer in layers)
    x = torch.randn(2, 5, 12)
    gradients = []
    for layer in (ours, theirs):
        leaf = x.clone().requires_grad_()
        layer(leaf).square().sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)
