"""Multiplicative attention against Keras, and why the factor came."""

from __future__ import annotations

import keras_oracle
import pytest
import torch

from model.attention_forms.multiplicative import multiplicative_attention


@pytest.mark.parametrize("general", [False, True])
def test_it_is_what_keras_computes(general: bool):
    """Keras' Attention without scale gives the same, for the dot and for the general form."""
    q, k, v = torch.randn(2, 3, 6), torch.randn(2, 5, 6), torch.randn(2, 5, 4)
    weight = torch.randn(6, 6) if general else None
    layer = keras_oracle.layers.Attention(use_scale=False, score_mode="dot")
    real = torch.tensor([[True] * 5, [True, True, True, False, False]])
    keys = k if weight is None else k @ weight.T
    wanted = keras_oracle.compute(layer, [q, v, keys], mask=[None, real])
    out, _ = multiplicative_attention(q, k, v, weight=weight, mask=real[:, None])
    torch.testing.assert_close(out, wanted)


def test_scores_without_a_factor_grow_with_the_head_size():
    """The spread of q . k is the root of D: with D = 1024 one key takes nearly all the weight."""
    largest = []
    for size in (4, 1024):
        q, k = torch.randn(64, size), torch.randn(64, size)
        _, weights = multiplicative_attention(q, k, torch.zeros(64, 1))
        largest.append(weights.max(dim=-1).values.mean().item())
    assert largest[0] < 0.5
    assert largest[1] > 0.9
