"""ModelRunner: turns a scheduled batch into tensors, runs the model, and returns hidden states.

What a forward pass needs is laid out in one buffer, allocated once at full size and filled with
NumPy; on a GPU it is copied over in one piece each step. Owned by the engine; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cache.blocks import PADDING_BLOCK
from cache.manager import Region
from cache.pool import KVCachePool
from cache.view import AttentionBackend, BatchLayout, CacheView
from model.config import ModelConfig
from server.batch import Batch, ScheduledRequest
from server.cache_plan import blocks_for

LOGIT_SLICE_BYTES = 64 * 2**20
"""Logits of scored prompts are computed in slices of at most this size."""

Ints = NDArray[np.int64]


class LanguageModel(Protocol):
    """What runs a batch: Transformer, or NativeTransformer in its place."""

    config: ModelConfig

    def hidden_states(self, input_ids: Tensor, positions: Tensor, kv: CacheView) -> Tensor:
        """Run all layers, writing keys and values; returns (N, C)."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute the logits (R, V), float32, of hidden states (R, C)."""


@dataclass(frozen=True, slots=True)
class ForwardInput:
    """The integers of one forward pass, as windows into one buffer of fixed size."""

    input_ids: Ints
    positions: Ints
    slots: Ints
    query_starts: Ints
    key_lengths: Ints
    block_table: Ints

    @classmethod
    def within(cls, buffer: Ints, *, max_tokens: int, max_requests: int) -> ForwardInput:
        """Divide a flat buffer; what is left after the five lists is the block table."""
        sizes = [max_tokens, max_tokens, max_tokens, max_requests + 1, max_requests]
        ids, positions, slots, starts, lengths, table = np.split(buffer, np.cumsum(sizes))
        return cls(ids, positions, slots, starts, lengths, table.reshape(max_requests, -1))

    @staticmethod
    def size(*, max_tokens: int, max_requests: int, max_blocks: int) -> int:
        """Integers in the buffer that `within` divides."""
        return 3 * max_tokens + 2 * max_requests + 1 + max_requests * max_blocks


class ModelRunner:
    """Runs the model over the batches that the scheduler makes.

    Args:
        model: What computes, on its device.
        pool: The cache it writes to and reads from, on the same device.
        backend: How attention reads and writes the pool.
        max_num_batched_tokens: Most tokens in one batch.
        max_num_seqs: Most requests in one batch.
        max_model_len: Most tokens of one request.
    """

    def __init__(
        self,
        model: LanguageModel,
        pool: KVCachePool,
        backend: AttentionBackend,
        *,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        max_model_len: int,
    ) -> None:
        self._model = model
        self._pool = pool
        self._backend = backend
        self._max_tokens = max_num_batched_tokens
        self._max_requests = max_num_seqs
        size = ForwardInput.size(
            max_tokens=max_num_batched_tokens,
            max_requests=max_num_seqs,
            max_blocks=blocks_for(max_model_len, pool.block_size),
        )
        device = pool.storage.device
        self._host = torch.full((size,), PADDING_BLOCK, pin_memory=device.type == "cuda")
        self._device = self._host if device.type == "cpu" else self._host.to(device)
        self._input = self._windows(self._host.numpy())
        # Which region each row of the block table describes, and how many of its blocks.
        self._table_rows: list[tuple[Region | None, int]] = [(None, 0)] * max_num_seqs

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Tensor:
        """Run all layers over the batch, writing keys and values; returns hidden states (N, C)."""
        num_tokens = batch.num_tokens
        layout = self._lay_out(batch)
        input_ids, positions = self._tensors(num_tokens, len(batch.scheduled))[:2]
        return self._model.hidden_states(
            input_ids, positions, CacheView(self._pool, layout, self._backend)
        )

    @torch.inference_mode()
    def logits(self, hidden: Tensor, rows: Sequence[int]) -> Tensor:
        """Logits (R, V) of the given rows of the batch, float32."""
        index = torch.tensor(rows, dtype=torch.int64, device=hidden.device)
        return self._model.logits(hidden.index_select(0, index))

    def logit_slices(self, hidden: Tensor, rows: range) -> Iterator[tuple[range, Tensor]]:
        """Logits of many neighbouring rows, a bounded number of bytes at a time."""
        step = max(1, LOGIT_SLICE_BYTES // (4 * self._model.config.vocab_size))
        for start in range(rows.start, rows.stop, step):
            part = range(start, min(start + step, rows.stop))
            yield part, self.logits(hidden, part)

    def warm_up(self, batch: Batch) -> None:
        """Run one batch before the first request, so that nobody waits for lazy set-up."""
        self.logits(self.forward(batch), [0])

    def _lay_out(self, batch: Batch) -> BatchLayout:
        row = 0
        self._input.query_starts[0] = 0
        for index, scheduled in enumerate(batch.scheduled):
            self._fill_tokens(scheduled, row)
            self._fill_table(index, scheduled)
            row += scheduled.num_new_tokens
            self._input.query_starts[index + 1] = row
            self._input.key_lengths[index] = scheduled.start + scheduled.num_new_tokens
        if self._device is not self._host:
            self._device.copy_(self._host, non_blocking=True)
        _, _, slots, query_starts, key_lengths, block_table = self._tensors(
            row, len(batch.scheduled)
        )
        max_key_length = int(self._input.key_lengths[: len(batch.scheduled)].max())
        max_blocks = blocks_for(max_key_length, self._pool.block_size)
        return BatchLayout(
            slots=slots,
            query_starts=query_starts,
            key_lengths=key_lengths,
            block_table=block_table[:, :max_blocks],
            query_lengths=tuple(scheduled.num_new_tokens for scheduled in batch.scheduled),
            num_decodes=batch.num_decodes,
            max_key_length=max_key_length,
        )

    def _fill_tokens(self, scheduled: ScheduledRequest, row: int) -> None:
        """Token ids, positions and slots of one request's new tokens, from `row` on."""
        start, count = scheduled.start, scheduled.num_new_tokens
        region = scheduled.request.region
        assert region is not None
        rows = slice(row, row + count)
        block_size = self._pool.block_size
        self._input.input_ids[rows] = scheduled.request.token_ids[start : start + count]
        if count == 1:
            self._input.positions[row] = start
            block, offset = divmod(start, block_size)
            self._input.slots[row] = region.block_ids[block] * block_size + offset
            return
        positions = np.arange(start, start + count)
        self._input.positions[rows] = positions
        first = start // block_size
        blocks = np.array(region.block_ids[first : blocks_for(start + count, block_size)])
        self._input.slots[rows] = (
            blocks[positions // block_size - first] * block_size + positions % block_size
        )

    def _fill_table(self, index: int, scheduled: ScheduledRequest) -> None:
        """The request's blocks in row `index`; blocks written in an earlier step stay."""
        region = scheduled.request.region
        assert region is not None
        owner, known = self._table_rows[index]
        if owner is not region:
            known = 0
        count = len(region.block_ids)
        self._input.block_table[index, known:count] = region.block_ids[known:]
        self._input.block_table[index, count:] = PADDING_BLOCK
        self._table_rows[index] = (region, count)

    def _windows(self, buffer: Ints) -> ForwardInput:
        return ForwardInput.within(
            buffer, max_tokens=self._max_tokens, max_requests=self._max_requests
        )

    def _tensors(self, num_tokens: int, num_requests: int) -> tuple[Tensor, ...]:
        """The buffer's windows on the device, cut to what this batch uses."""
        sizes = [self._max_tokens] * 3 + [self._max_requests + 1, self._max_requests]
        *lists, table = self._device.split_with_sizes([*sizes, len(self._device) - sum(sizes)])
        used = [num_tokens] * 3 + [num_requests + 1, num_requests]
        cut = [window[:count] for window, count in zip(lists, used, strict=True)]
        return (*cut, table.view(self._max_requests, -1)[:num_requests])
