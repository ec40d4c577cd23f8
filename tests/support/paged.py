"""A cache in the most awkward state: blocks in random order, and no number where none was written.

Plays the engine's part in tests of the model: it places requests in the pool, lays out batches,
and collects logits.
"""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor

from cache.pool import KVCachePool
from cache.view import AttentionBackend, BatchLayout, CacheView
from model.torch_attention import TorchAttention
from model.transformer import Transformer


class PagedCache:
    """Places any number of requests, by name, in shuffled blocks of a pool full of NaN."""

    def __init__(self, pool: KVCachePool, backend: AttentionBackend, *, seed: int = 0) -> None:
        pool.storage.fill_(torch.nan)
        self.pool = pool
        self.backend = backend
        self.tables: dict[str, list[int]] = {}
        self.lengths: dict[str, int] = {}
        self._free = list(range(1, pool.num_blocks))
        random.Random(seed).shuffle(self._free)

    @classmethod
    def for_model(
        cls,
        model: Transformer,
        *,
        block_size: int = 16,
        num_blocks: int = 200,
        dtype: torch.dtype = torch.float32,
        backend: AttentionBackend | None = None,
    ) -> PagedCache:
        """A cache of a model's shape."""
        pool = KVCachePool(
            num_layers=model.config.num_layers,
            num_blocks=num_blocks,
            block_size=block_size,
            num_kv_heads=model.config.num_kv_heads,
            head_dim=model.config.head_dim,
            dtype=dtype,
        )
        return cls(pool, backend or TorchAttention())

    def grow(self, name: str, num_new: int) -> list[int]:
        """Make room for a request's new tokens; returns their slots."""
        start, size = self.lengths.get(name, 0), self.pool.block_size
        self.lengths[name] = start + num_new
        table = self.tables.setdefault(name, [])
        while len(table) * size < start + num_new:
            table.append(self._free.pop())
        return [table[i // size] * size + i % size for i in range(start, start + num_new)]

    def view(self, batch: dict[str, int]) -> tuple[CacheView, Tensor]:
        """The view for a step that gives each named request new tokens, and their positions."""
        starts = [self.lengths.get(name, 0) for name in batch]
        slots = [slot for name, count in batch.items() for slot in self.grow(name, count)]
        positions = [
            position
            for start, count in zip(starts, batch.values(), strict=True)
            for position in range(start, start + count)
        ]
        counts = torch.tensor([0, *batch.values()])
        width = max(len(self.tables[name]) for name in batch)
        tables = [self.tables[name] + [0] * (width - len(self.tables[name])) for name in batch]
        num_decodes = 0
        while num_decodes < len(batch) and list(batch.values())[num_decodes] == 1:
            num_decodes += 1
        layout = BatchLayout(
            slots=torch.tensor(slots),
            query_starts=counts.cumsum(0),
            key_lengths=torch.tensor([self.lengths[name] for name in batch]),
            host_key_lengths=np.array([self.lengths[name] for name in batch]),
            block_table=torch.tensor(tables),
            query_lengths=tuple(batch.values()),
            num_decodes=num_decodes,
            max_key_length=max(self.lengths[name] for name in batch),
        )
        return CacheView(self.pool, layout, self.backend), torch.tensor(positions)

    def step(self, model: Transformer, batch: dict[str, list[int]]) -> dict[str, Tensor]:
        """Feed each named request its next tokens; returns the log-probabilities after each."""
        view, positions = self.view({name: len(ids) for name, ids in batch.items()})
        ids = torch.tensor([token for tokens in batch.values() for token in tokens])
        with torch.inference_mode():
            logprobs = model(ids, positions, view).log_softmax(-1)
        pieces = logprobs.split([len(tokens) for tokens in batch.values()])
        return dict(zip(batch, pieces, strict=True))
