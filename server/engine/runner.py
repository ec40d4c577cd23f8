"""ModelRunner: turns a scheduled batch into tensors, runs the model, and returns hidden states.

What a forward pass needs is laid out in one buffer, allocated once at full size and filled with
NumPy; on a GPU it is copied over in one piece each step. Owned by the engine; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
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
from model.native import NativeTransformer
from model.native_calls import BoundLogits, BoundPass
from server.engine.planning.batch import Batch, ScheduledRequest
from server.engine.planning.cache_plan import blocks_for
from server.request import Request

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
        self._input = ForwardInput.within(
            self._host.numpy(), max_tokens=max_num_batched_tokens, max_requests=max_num_seqs
        )
        # Which region each row of the block table describes, and how many of its blocks.
        self._regions: list[Region | None] = [None] * max_num_seqs
        self._num_blocks = [0] * max_num_seqs
        self._native = model if isinstance(model, NativeTransformer) else None
        # Memory that the system has to clear for each step anew costs more than what it is for.
        width, vocab_size = model.config.hidden_size, model.config.vocab_size
        self._hidden = torch.empty(max_num_batched_tokens if self._native else 0, width)
        self._logits = torch.empty(max_num_seqs if self._native else 0, vocab_size)
        self._windows = self._cut((1,), 1)

    def forward(self, batch: Batch) -> Tensor:
        """Run all layers over the batch, writing keys and values.

        Returns:
            Hidden states (N, C), valid until the next call.
        """
        windows = self._lay_out(batch)
        if windows.native is not None:
            return windows.native()
        with torch.inference_mode():
            return self._model.hidden_states(windows.input_ids, windows.positions, windows.view)

    def logits(self, hidden: Tensor, rows: Sequence[int]) -> Tensor:
        """Logits (R, V) of the given rows of the batch, float32, valid until the next call.

        Args:
            hidden: (N, C) what `forward` returned.
            rows: At most one for each request, in order.
        """
        if self._native is None:
            with torch.inference_mode():
                return self._model.logits(_select(hidden, rows))
        all_logits = self._windows.all_logits
        if all_logits is not None and len(rows) == len(self._windows.form[0]):
            return all_logits()
        return self._native.logits(_select(hidden, rows), out=self._logits[: len(rows)])

    def logit_slices(self, hidden: Tensor, rows: range) -> Iterator[tuple[range, Tensor]]:
        """Logits of many neighbouring rows, a bounded number of bytes at a time."""
        step = max(1, LOGIT_SLICE_BYTES // (4 * self._model.config.vocab_size))
        for start in range(rows.start, rows.stop, step):
            part = range(start, min(start + step, rows.stop))
            with torch.inference_mode():
                logits = self._model.logits(_select(hidden, part))
            yield part, logits

    def _lay_out(self, batch: Batch) -> _Windows:
        """Fill the buffer, and cut it to what this batch uses."""
        scheduled, num_decodes = batch.scheduled, batch.num_decodes
        self._fill_decodes(scheduled[:num_decodes])
        if num_decodes < len(scheduled):
            first_rows = batch.first_rows[num_decodes:]
            for entry, row in zip(scheduled[num_decodes:], first_rows, strict=True):
                self._fill_chunk(entry, row)
        key_lengths = [entry.start + entry.num_new_tokens for entry in scheduled]
        self._input.key_lengths[: len(key_lengths)] = key_lengths
        for index, entry in enumerate(scheduled):
            region = _region(entry.request)
            if (
                self._num_blocks[index] != len(region.block_ids)
                or self._regions[index] is not region
            ):
                self._fill_table(index, region)
        max_blocks = blocks_for(max(key_lengths), self._pool.block_size)
        if self._windows.form != (batch.query_lengths, max_blocks):
            self._windows = self._cut(batch.query_lengths, max_blocks)
        if self._device is not self._host:
            self._device.copy_(self._host, non_blocking=True)
        return self._windows

    def _fill_decodes(self, entries: Sequence[ScheduledRequest]) -> None:
        """Token ids, positions and slots of the requests with one new token, which come first."""
        rows, size = slice(len(entries)), self._pool.block_size
        input_ids, slots = [], []
        for request, start, _, _ in entries:
            input_ids.append(request.token_ids[start])
            slots.append(_region(request).block_ids[start // size] * size + start % size)
        self._input.input_ids[rows] = input_ids
        self._input.positions[rows] = [entry.start for entry in entries]
        self._input.slots[rows] = slots

    def _fill_chunk(self, entry: ScheduledRequest, row: int) -> None:
        """Token ids, positions and slots of one request's new tokens, from `row` on."""
        start, count = entry.start, entry.num_new_tokens
        rows = slice(row, row + count)
        block_size = self._pool.block_size
        self._input.input_ids[rows] = entry.request.token_ids[start : start + count]
        positions = np.arange(start, start + count)
        self._input.positions[rows] = positions
        first = start // block_size
        blocks = np.array(
            _region(entry.request).block_ids[first : blocks_for(start + count, block_size)]
        )
        self._input.slots[rows] = (
            blocks[positions // block_size - first] * block_size + positions % block_size
        )

    def _fill_table(self, index: int, region: Region) -> None:
        """A request's blocks in row `index`; blocks written in an earlier step stay."""
        count = len(region.block_ids)
        known = self._num_blocks[index] if self._regions[index] is region else 0
        self._input.block_table[index, known:count] = region.block_ids[known:]
        self._input.block_table[index, count:] = PADDING_BLOCK
        self._regions[index], self._num_blocks[index] = region, count

    def _cut(self, query_lengths: tuple[int, ...], max_blocks: int) -> _Windows:
        """The buffer's windows on the device, cut to what such a batch uses."""
        num_tokens, num_requests = sum(query_lengths), len(query_lengths)
        self._input.query_starts[: num_requests + 1] = [*accumulate(query_lengths, initial=0)]
        sizes = [self._max_tokens] * 3 + [self._max_requests + 1, self._max_requests]
        *lists, table = self._device.split_with_sizes([*sizes, len(self._device) - sum(sizes)])
        used = [num_tokens] * 3 + [num_requests + 1, num_requests]
        cut = [window[:count] for window, count in zip(lists, used, strict=True)]
        input_ids, positions, slots, query_starts, key_lengths = cut
        layout = BatchLayout(
            slots=slots,
            query_starts=query_starts,
            key_lengths=key_lengths,
            block_table=table.view(self._max_requests, -1)[:num_requests, :max_blocks],
            query_lengths=query_lengths,
            num_decodes=query_lengths.count(1),
            max_key_length=max_blocks * self._pool.block_size,
        )
        view = CacheView(self._pool, layout, self._backend)
        native, all_logits = None, None
        if self._native is not None:
            hidden = self._hidden[:num_tokens]
            native = self._native.bind(input_ids, positions, view, out=hidden)
            if num_tokens == num_requests:  # all decode, and so usually all are sampled
                all_logits = self._native.bind_logits(hidden, out=self._logits[:num_tokens])
        form = query_lengths, max_blocks
        return _Windows(input_ids, positions, view, form, native=native, all_logits=all_logits)


@dataclass(frozen=True, slots=True)
class _Windows:
    """The buffer cut to one form of batch; the same tensors serve every batch of that form."""

    input_ids: Tensor
    positions: Tensor
    view: CacheView
    form: tuple[tuple[int, ...], int]
    """How many new tokens each request has, and how many blocks the longest has."""
    native: BoundPass | None
    """What the kernels run, if they do."""
    all_logits: BoundLogits | None
    """What they compute next where every row is wanted, if that may be."""


def _region(request: Request) -> Region:
    assert request.region is not None, "whoever is scheduled has a region"
    return request.region


def _select(hidden: Tensor, rows: Sequence[int]) -> Tensor:
    """The rows (R, C) of hidden states (N, C), in order, none twice."""
    if len(rows) == hidden.shape[0]:
        return hidden
    return hidden.index_select(0, torch.tensor(rows, dtype=torch.int64, device=hidden.device))
