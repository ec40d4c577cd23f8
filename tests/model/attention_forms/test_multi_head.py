"""MultiHeadAttention against torch's and against Keras', which is saved and loaded again."""

from __future__ import annotations

import keras_oracle
import pytest
import torch
from torch import Tensor, nn

from model.attention_forms.multi_head import MultiHeadAttention

HIDDEN, HEADS = 12, 3
SIZE = HIDDEN // HEADS


@pytest.fixture
def ours() -> MultiHeadAttention:
    """A layer in evaluation, its biases not zero."""
    layer = MultiHeadAttention(HIDDEN, HEADS, dropout=0.5).eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer.requires_grad_(requires_grad=False)


def keras_twin(ours: MultiHeadAttention):
    """Keras' layer of the same weights, which stand by input, head and dimension there."""
    twin = keras_oracle.layers.MultiHeadAttention(HEADS, SIZE, dropout=0.5)
    twin.build((None, None, HIDDEN), (None, None, HIDDEN))
    weights: list[Tensor] = []
    for projection in (ours.q_proj, ours.k_proj, ours.v_proj):
        weights += [
            projection.weight.T.reshape(HIDDEN, HEADS, SIZE),
            projection.bias.reshape(HEADS, SIZE),
        ]
    weights += [ours.o_proj.weight.T.reshape(HEADS, SIZE, HIDDEN), ours.o_proj.bias]
    twin.set_weights([weight.numpy() for weight in weights])
    return twin


def test_keras_computes_the_same(ours: MultiHeadAttention):
    """Self attention, causal and not, and cross attention are Keras', all within 1e-5."""
    x, memory = torch.randn(2, 5, HIDDEN), torch.randn(2, 7, HIDDEN)
    twin = keras_twin(ours)
    for causal in (False, True):
        wanted = keras_oracle.compute(twin, x, x, use_causal_mask=causal)
        torch.testing.assert_close(ours(x, x, causal=causal), wanted, atol=1e-5, rtol=1e-5)
    wanted = keras_oracle.compute(twin, x, memory)
    torch.testing.assert_close(ours(x, memory), wanted, atol=1e-5, rtol=1e-5)


def test_a_keras_model_of_it_is_saved_and_loaded_again(ours: MultiHeadAttention, tmp_path):
    """What Keras wrote to a file and read back still computes what we compute."""
    model = keras_oracle.model_of(keras_twin(ours), hidden_size=HIDDEN)
    again = keras_oracle.saved_and_loaded(model, tmp_path)
    x = torch.randn(2, 5, HIDDEN)
    wanted = keras_oracle.compute(again, x)
    torch.testing.assert_close(ours(x, x, causal=True), wanted, atol=1e-5, rtol=1e-5)


def test_torch_computes_the_same_for_padded_texts(ours: MultiHeadAttention):
    """Keys behind a text's end are hidden as torch.nn.MultiheadAttention hides them."""
    theirs = nn.MultiheadAttention(HIDDEN, HEADS, batch_first=True).eval()
    projections = (ours.q_proj, ours.k_proj, ours.v_proj)
    theirs.in_proj_weight.data = torch.cat([each.weight for each in projections])
    theirs.in_proj_bias.data = torch.cat([each.bias for each in projections])
    theirs.out_proj.load_state_dict(ours.o_proj.state_dict())
    x, memory = torch.randn(2, 5, HIDDEN), torch.randn(2, 7, HIDDEN)
    lengths = torch.tensor([7, 3])
    padding = torch.arange(7) >= lengths[:, None]
    wanted, _ = theirs(x, memory, memory, key_padding_mask=padding)
    torch.testing.assert_close(ours(x, memory, key_lengths=lengths), wanted.detach())


def test_attention_weights_are_dropped_in_training_only(ours: MultiHeadAttention):
    """In training two runs differ, in evaluation none does."""
    x = torch.randn(1, 9, HIDDEN)
    assert torch.equal(ours(x, x), ours(x, x))
    ours.train()
    assert not torch.equal(ours(x, x), ours(x, x))


def test_heads_must_share_the_hidden_size_evenly():
    """The message names both sizes."""
    with pytest.raises(ValueError, match="hidden_size is 10, no multiple of num_heads, 3"):
        MultiHeadAttention(10, 3)
