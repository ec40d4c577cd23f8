"""The four ways to take in a token: equal where they must be, and what each keeps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from model.attention import scaled_dot_product_attention
from model.attention_forms.decoding import (
    AttentionWeights,
    KeepingAll,
    KeepingAState,
    KeepingAWindow,
    RecomputingEverything,
)
from model.attention_forms.linear import elu_features, linear_attention
from model.attention_forms.patterns import attention_sinks

NUM_TOKENS = 40


@pytest.fixture
def weights() -> AttentionWeights:
    """Projections of two heads of size 8."""
    return AttentionWeights(2, 8).requires_grad_(requires_grad=False)


@pytest.fixture
def text() -> Tensor:
    """Hidden states of a text."""
    return torch.randn(NUM_TOKENS, 16, generator=torch.Generator().manual_seed(1))


def fed(way, text: Tensor) -> Tensor:
    """What a way answers to each token of a text in turn."""
    return torch.cat([way.step(token[None]) for token in text])


def joined(heads: Tensor) -> Tensor:
    return heads.transpose(0, 1).flatten(1)


def test_keeping_all_is_recomputing_everything(weights, text):
    """A full cache changes no output; and both are the reference."""
    kept = fed(KeepingAll(weights, max_tokens=NUM_TOKENS), text)
    recomputed = fed(RecomputingEverything(weights, max_tokens=NUM_TOKENS), text)
    wanted, _ = scaled_dot_product_attention(*weights(text), causal=True)
    torch.testing.assert_close(kept, joined(wanted), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(recomputed, joined(wanted), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("window", "sinks"), [(7, 0), (7, 3), (1, 1), (50, 2)])
def test_a_ring_is_the_pattern(weights, text, window: int, sinks: int):
    """The ring's outputs are those of the reference under the mask of a window with sinks."""
    out = fed(KeepingAWindow(weights, window=window, sinks=sinks), text)
    q, k, v = weights(text)
    mask = attention_sinks(NUM_TOKENS, window=window, sinks=sinks)
    wanted, _ = scaled_dot_product_attention(q, k, v, mask=mask)
    torch.testing.assert_close(out, joined(wanted), atol=1e-5, rtol=1e-5)


def test_a_state_is_linear_attention(weights, text):
    """The recurrence's outputs are those of the parallel form."""
    q, k, v = weights(text)
    wanted = linear_attention(elu_features(q), elu_features(k), v)
    torch.testing.assert_close(
        fed(KeepingAState(weights), text), joined(wanted), atol=1e-5, rtol=1e-5
    )


def test_what_each_keeps(weights, text):
    """Nothing, two numbers for each token and dimension, those of the window, and the sums."""
    ways = {
        "recomputed": RecomputingEverything(weights, max_tokens=NUM_TOKENS),
        "all": KeepingAll(weights, max_tokens=NUM_TOKENS),
        "window": KeepingAWindow(weights, window=7, sinks=3),
        "state": KeepingAState(weights),
    }
    held = {name: [] for name in ways}
    for token in text:
        for name, way in ways.items():
            way.step(token[None])
            held[name].append(way.num_bytes)
    assert held["recomputed"] == [0] * NUM_TOKENS
    assert held["all"] == [4 * 2 * 16 * n for n in range(1, NUM_TOKENS + 1)]
    assert held["window"] == [4 * 2 * 16 * min(n, 10) for n in range(1, NUM_TOKENS + 1)]
    assert held["state"] == [4 * 2 * (8 * 8 + 8)] * NUM_TOKENS


@pytest.mark.parametrize("length", [1, 2, 9, 30])
def test_what_was_filled_in_is_as_if_it_had_been_fed(weights, text, length: int):
    """After any beginning taken in at once, each way answers as after its tokens one by one."""

    def ways():
        return (
            RecomputingEverything(weights, max_tokens=NUM_TOKENS),
            KeepingAll(weights, max_tokens=NUM_TOKENS),
            KeepingAWindow(weights, window=7, sinks=3),
            KeepingAState(weights),
        )

    for filled, stepped in zip(ways(), ways(), strict=True):
        filled.fill(text[:length])
        fed(stepped, text[:length])
        assert filled.num_bytes == stepped.num_bytes
        torch.testing.assert_close(
            fed(filled, text[length:]), fed(stepped, text[length:]), atol=1e-5, rtol=1e-5
        )
