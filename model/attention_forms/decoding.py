"""Four ways to take in a new token: recompute all, keep all, keep a window, keep a state.

Each is fed one token's hidden state at a time and answers with one attention layer's output for
it; what differs is what it keeps and what it reads. `kvserve compare --forms` measures them.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.attention_forms.linear import LinearState, elu_features


class AttentionWeights(nn.Module):
    """The projections that all four share: one matrix to queries, keys and values of all heads.

    Args:
        num_heads: H.
        head_dim: D; the hidden size is H x D.
    """

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim = num_heads, head_dim
        self.qkv = nn.Linear(num_heads * head_dim, 3 * num_heads * head_dim, bias=False)

    @property
    def hidden_size(self) -> int:
        """C."""
        return self.num_heads * self.head_dim

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project x (T, C) to queries, keys and values, each (H, T, D)."""
        split = self.qkv(x).view(len(x), 3, self.num_heads, self.head_dim)
        q, k, v = split.permute(1, 2, 0, 3)
        return q, k, v


class WayToDecode(Protocol):
    """What takes in a text token by token."""

    def fill(self, text: Tensor) -> None:
        """Take in hidden states (T, C) without answering, before any other token."""

    def step(self, x: Tensor) -> Tensor:
        """Take in a token's hidden state x (1, C); return the layer's output (1, C)."""

    @property
    def num_bytes(self) -> int:
        """Bytes it keeps for the tokens so far."""


class RecomputingEverything:
    """Keeps the text alone and computes every token of it anew: O(n^2) for each token."""

    def __init__(self, weights: AttentionWeights, *, max_tokens: int) -> None:
        self._weights = weights
        self._text = torch.zeros(max_tokens, weights.hidden_size)
        self._length = 0

    def fill(self, text: Tensor) -> None:
        """See WayToDecode."""
        self._length = len(text)
        self._text[: self._length] = text

    def step(self, x: Tensor) -> Tensor:
        """See WayToDecode."""
        self._text[self._length] = x[0]
        self._length += 1
        q, k, v = self._weights(self._text[: self._length])
        out = functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)
        return out[0, :, -1:].transpose(0, 1).flatten(1)

    @property
    def num_bytes(self) -> int:
        """Nothing beside the text, which whoever asks has anyway."""
        return 0


class KeepingAll:
    """Keeps every key and value, in memory taken once: O(n) for each token."""

    def __init__(self, weights: AttentionWeights, *, max_tokens: int) -> None:
        self._weights = weights
        self._cache = torch.zeros(2, weights.num_heads, max_tokens, weights.head_dim)
        self._length = 0

    def fill(self, text: Tensor) -> None:
        """See WayToDecode."""
        self._length = len(text)
        _, *kept = self._weights(text)
        self._cache[:, :, : self._length] = torch.stack(kept)

    def step(self, x: Tensor) -> Tensor:
        """See WayToDecode."""
        q, k, v = self._weights(x)
        self._cache[0, :, self._length], self._cache[1, :, self._length] = k[:, 0], v[:, 0]
        self._length += 1
        keys, values = self._cache[:, None, :, : self._length]
        out = functional.scaled_dot_product_attention(q[None], keys, values)
        return out[0].transpose(0, 1).flatten(1)

    @property
    def num_bytes(self) -> int:
        """Those written so far."""
        return self._cache[:, :, : self._length].nbytes


class KeepingAWindow:
    """Keeps the first tokens and the last ones, in a ring: O(w) for each token.

    A softmax does not ask for the order of its keys, so a new one takes the oldest one's place.
    """

    def __init__(self, weights: AttentionWeights, *, window: int, sinks: int = 0) -> None:
        self._weights = weights
        self._window, self._sinks = window, sinks
        self._cache = torch.zeros(2, weights.num_heads, sinks + window, weights.head_dim)
        self._length = 0

    def fill(self, text: Tensor) -> None:
        """See WayToDecode."""
        self._length = len(text)
        last = max(self._sinks, self._length - self._window)
        tokens = [*range(min(self._sinks, self._length)), *range(last, self._length)]
        _, *kept = self._weights(text[tokens])
        places = [self._place(token) for token in tokens]
        self._cache[:, :, places] = torch.stack(kept)

    def _place(self, token: int) -> int:
        """Where a token is kept."""
        behind = token - self._sinks
        return token if behind < 0 else self._sinks + behind % self._window

    def step(self, x: Tensor) -> Tensor:
        """See WayToDecode."""
        q, k, v = self._weights(x)
        at = self._place(self._length)
        self._cache[0, :, at], self._cache[1, :, at] = k[:, 0], v[:, 0]
        self._length += 1
        keys, values = self._cache[:, None, :, : self._length]
        out = functional.scaled_dot_product_attention(q[None], keys, values)
        return out[0].transpose(0, 1).flatten(1)

    @property
    def num_bytes(self) -> int:
        """Those written so far, which soon are all."""
        return self._cache[:, :, : self._length].nbytes


class KeepingAState:
    """Keeps the sums of linear attention: O(1) for each token."""

    def __init__(self, weights: AttentionWeights) -> None:
        self._weights = weights
        size = weights.head_dim
        self._state = LinearState.empty(weights.num_heads, features=size, value_size=size)

    def fill(self, text: Tensor) -> None:
        """See WayToDecode."""
        _, k, v = self._weights(text)
        mapped = elu_features(k)
        self._state = LinearState(mapped.mT @ v, mapped.sum(dim=1))

    def step(self, x: Tensor) -> Tensor:
        """See WayToDecode."""
        q, k, v = self._weights(x)
        mapped_q, mapped_k = elu_features(q[:, 0]), elu_features(k[:, 0])
        return self._state.step(mapped_q, mapped_k, v[:, 0]).flatten()[None]

    @property
    def num_bytes(self) -> int:
        """Of the sums, from the first token on."""
        return self._state.num_bytes
