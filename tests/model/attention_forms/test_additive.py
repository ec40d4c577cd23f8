"""Additive attention against Keras."""

from __future__ import annotations

import keras_oracle
import torch

from model.attention_forms.additive import additive_attention


def test_it_is_what_keras_computes():
    """With queries and keys projected, Keras' AdditiveAttention gives the same, mask included."""
    q, k, v = torch.randn(2, 3, 6), torch.randn(2, 5, 7), torch.randn(2, 5, 4)
    query_weight, key_weight = torch.randn(8, 6), torch.randn(8, 7)
    real = torch.tensor([[True] * 5, [True, True, True, False, False]])
    layer = keras_oracle.layers.AdditiveAttention()
    inputs = [q @ query_weight.T, v, k @ key_weight.T]
    layer.build([part.shape for part in inputs])
    layer.set_weights([score_weight := torch.randn(8).numpy()])
    wanted, wanted_weights = layer(inputs, mask=[None, real], return_attention_scores=True)
    out, weights = additive_attention(
        q,
        k,
        v,
        query_weight=query_weight,
        key_weight=key_weight,
        score_weight=torch.from_numpy(score_weight),
        mask=real[:, None],
    )
    torch.testing.assert_close(out, wanted.detach())
    torch.testing.assert_close(weights, wanted_weights.detach(), atol=1e-6, rtol=1e-5)


def test_queries_and_keys_of_different_sizes_may_meet():
    """A query of size 6 finds its key among keys of size 7 once a layer maps both to 8."""
    out, weights = additive_attention(
        torch.randn(6)[None],
        torch.randn(5, 7),
        torch.eye(5),
        query_weight=torch.randn(8, 6),
        key_weight=torch.randn(8, 7),
        score_weight=torch.randn(8),
    )
    torch.testing.assert_close(out, weights)
    torch.testing.assert_close(weights.sum(), torch.tensor(1.0))
