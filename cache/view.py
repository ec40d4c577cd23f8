"""CacheView: what one forward pass may write to the cache and what it may see of it.

A forward pass takes one flat, ragged batch: the new tokens of all its requests, one after the
other. Attention is handed a CacheView and calls `update` and `attend`; how the pool is laid out
is known here and to the backend only. The runner builds one view for each step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cache.pool import KVCachePool


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchLayout:
    """Which rows of a flat batch belong to which request, and where their keys and values live.

    All tensors are int64 on the pool's device. Requests that decode (one new token) come first.
    Request b owns the rows `query_starts[b]:query_starts[b + 1]`; they are the last of its
    `key_lengths[b]` tokens, so its row i stands at position key_lengths[b] - T + i.
    """

    slots: Tensor
    """(N,) where each new key is written: block id x block size + offset."""
    query_starts: Tensor
    """(B + 1,) cumulative numbers of new tokens."""
    key_lengths: Tensor
    """(B,) tokens in the cache once this pass has written its own."""
    block_table: Tensor
    """(B, max blocks) block ids in order; unused entries name the padding block."""
    query_lengths: tuple[int, ...]
    """The numbers of new tokens again, for the host."""
    host_key_lengths: NDArray[np.int64]
    """`key_lengths` again, for the host: to read those may mean waiting for a device."""
    num_decodes: int
    """How many leading requests have exactly one new token."""
    max_key_length: int
    """No less than the largest of `key_lengths`, and in the same block."""
    tiles: Tensor | None = None
    """(T, 2) a request and which piece of its new tokens, for a backend that divides them so."""

    def with_tiles(self, tiles: Tensor) -> BatchLayout:
        """The same layout with its pieces."""
        return replace(self, tiles=tiles)


class AttentionBackend(Protocol):
    """How keys and values are written into the pool and read from it."""

    def write(self, cache: Tensor, slots: Tensor, new: Tensor) -> None:
        """Copy `new` (N, Hkv, D) to its `slots` of one layer's (blocks, block size, Hkv, D)."""

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        layout: BatchLayout,
        *,
        scale: float,
        window: int | None,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Causal attention of q (N, H, D) over each row's own request; returns (N, H, D)."""


@dataclass(frozen=True, slots=True)
class CacheView:
    """The cache as one forward pass sees it."""

    pool: KVCachePool
    layout: BatchLayout
    backend: AttentionBackend

    def update(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Write the new keys and values, each (N, Hkv, D), of one layer in place."""
        self.backend.write(self.pool.keys(layer), self.layout.slots, k)
        self.backend.write(self.pool.values(layer), self.layout.slots, v)

    def attend(
        self,
        layer: int,
        q: Tensor,
        *,
        scale: float,
        window: int | None = None,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attend causally to what the cache holds for each row's request.

        Args:
            layer: Index of the layer whose keys and values are read.
            q: (N, H, D) queries, one for each new token; their own keys are written already.
            scale: Factor of the scores, usually 1/sqrt(D).
            window: How many of the last keys a query sees, its own included; None is all.
            cap: Soft cap of the scaled scores; None is none.
            sinks: (H,) float32 a score of each head that takes part in its softmax and adds no
                value; None is none.

        Returns:
            (N, H, D) in the dtype of q.
        """
        return self.backend.attend(
            q,
            self.pool.keys(layer),
            self.pool.values(layer),
            self.layout,
            scale=scale,
            window=window,
            cap=cap,
            sinks=sinks,
        )
