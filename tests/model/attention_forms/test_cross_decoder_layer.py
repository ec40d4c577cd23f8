"""CrossDecoderLayer against torch.nn.TransformerDecoderLayer."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_layers import copy_weights

from model.attention_forms.cross_decoder_layer import CrossDecoderLayer


@pytest.fixture
def layers() -> tuple[CrossDecoderLayer, nn.Module]:
    """Ours and torch's, with the same weights, in training."""
    ours = CrossDecoderLayer(12, 3, intermediate_size=20, dropout=0.3)
    theirs = nn.TransformerDecoderLayer(12, 3, 20, dropout=0.3, batch_first=True)
    copy_weights(ours, theirs)
    return ours, theirs


def test_in_evaluation_it_is_torchs(layers):
    """A causal answer over padded texts of different lengths gives what torch gives."""
    ours, theirs = (layer.eval() for layer in layers)
    x, memory, lengths = torch.randn(2, 5, 12), torch.randn(2, 7, 12), torch.tensor([7, 4])
    wanted = theirs(
        x,
        memory,
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(5),
        tgt_is_causal=True,
        memory_key_padding_mask=torch.arange(7) >= lengths[:, None],
    )
    out = ours(x, memory, memory_lengths=lengths)
    torch.testing.assert_close(out, wanted, atol=1e-5, rtol=1e-5)


def test_a_token_depends_on_earlier_ones_and_on_the_whole_memory(layers):
    """Changing a later token changes nothing before it; changing the memory's last changes all."""
    ours = layers[0].eval()
    x, memory = torch.randn(1, 5, 12), torch.randn(1, 7, 12)
    out = ours(x, memory)
    later, other = x.clone(), memory.clone()
    later[0, 3] += 1
    other[0, 6] += 1
    torch.testing.assert_close(ours(later, memory)[0, :3], out[0, :3])
    assert not torch.allclose(ours(later, memory)[0, 3:], out[0, 3:])
    assert (ours(x, other) != out).any(dim=-1).all()


def test_dropout_happens_in_training_only(layers):
    """In training two runs differ, in evaluation none does."""
    ours = layers[0]
    x, memory = torch.randn(1, 5, 12), torch.randn(1, 7, 12)
    assert not torch.equal(ours(x, memory), ours(x, memory))
    ours.eval()
    assert torch.equal(ours(x, memory), ours(x, memory))
