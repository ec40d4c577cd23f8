"""The view: what a layer writes and reads goes to its own part of the pool, through the backend."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from cache.pool import KVCachePool
from cache.view import BatchLayout, CacheView


@dataclass
class FakeBackend:
    """Writes as asked, and answers attention with the mean of each request's values."""

    calls: list[tuple[float, int | None]] = field(default_factory=list)

    def write(self, cache: Tensor, slots: Tensor, new: Tensor) -> None:
        cache.view(-1, *cache.shape[2:])[slots] = new

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        layout: BatchLayout,
        *,
        scale: float,
        window: int | None,
        cap: float | None,
        sinks: Tensor | None,
    ) -> Tensor:
        self.calls.append((scale, window))
        means = []
        for blocks, length in zip(layout.block_table, layout.key_lengths.tolist(), strict=True):
            rows = values[blocks].flatten(0, 1)[:length]
            means.append(rows.mean(0))
        return torch.stack(means)


def make_view() -> CacheView:
    """Two requests that decode: one at position 5 in blocks 3 and 1, one at 0 in block 2."""
    pool = KVCachePool(
        num_layers=2, num_blocks=4, block_size=4, num_kv_heads=1, head_dim=2, dtype=torch.float32
    )
    layout = BatchLayout(
        slots=torch.tensor([1 * 4 + 1, 2 * 4]),
        query_starts=torch.tensor([0, 1, 2]),
        key_lengths=torch.tensor([6, 1]),
        host_key_lengths=np.array([6, 1]),
        block_table=torch.tensor([[3, 1], [2, 0]]),
        query_lengths=(1, 1),
        num_decodes=2,
        max_key_length=6,
    )
    return CacheView(pool, layout, FakeBackend())


def test_update_writes_keys_and_values_of_one_layer() -> None:
    """New keys and values land in their slots of their layer, and nothing else changes."""
    view = make_view()
    k, v = torch.full((2, 1, 2), 1.0), torch.full((2, 1, 2), 2.0)
    view.update(1, k, v)
    expected = torch.zeros_like(view.pool.storage)
    for block, offset in ((1, 1), (2, 0)):
        expected[0, 1, block, offset] = 1.0
        expected[1, 1, block, offset] = 2.0
    assert torch.equal(view.pool.storage, expected)


def test_attend_reads_what_update_has_written() -> None:
    """A request sees the tokens of its own blocks in order, those just written included."""
    view = make_view()
    view.pool.values(0)[3] = 3.0  # the first four tokens of the first request
    view.pool.values(0)[1, 0] = 3.0
    view.update(0, torch.zeros(2, 1, 2), torch.tensor([[[9.0, 9.0]], [[7.0, 7.0]]]))
    out = view.attend(0, torch.zeros(2, 1, 2), scale=0.5, window=3)
    assert torch.equal(out, torch.tensor([[[4.0, 4.0]], [[7.0, 7.0]]]))  # (5 x 3 + 9) / 6, and 7
    assert isinstance(view.backend, FakeBackend)
    assert view.backend.calls == [(0.5, 3)]
