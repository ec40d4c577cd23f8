"""BatchBuffers: the integers of one forward pass, in one host buffer that is allocated once.

Filled with NumPy from a FlatBatch. What stays from step to step, above all the block tables of
requests that go on, is not written again. Owned by an executor.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch

from cache.blocks import PADDING_BLOCK
from cache.manager import Region
from cache.view import BatchLayout
from model.executors.executor import FlatBatch, PassLimits
from model.pass_context import PassTensors

Form = tuple[tuple[int, ...], int]
"""What two batches must have in common to share their views of the buffers: how many new tokens
each request has, and how many blocks the longest has."""


class BatchBuffers:
    """Input ids, positions, slots, query starts, key lengths and block table of one pass.

    Args:
        limits: The largest pass.
    """

    def __init__(self, limits: PassLimits) -> None:
        tokens, requests = limits.max_num_batched_tokens, limits.max_num_seqs
        self._limits = limits
        self._sizes = [tokens, tokens, tokens, requests + 1, requests]
        self.size = sum(self._sizes) + requests * limits.max_blocks
        """Integers of the largest pass."""
        self._buffer = torch.full((self.size,), PADDING_BLOCK)
        lists = np.split(self._buffer.numpy(), np.cumsum(self._sizes))
        self._input_ids, self._positions, self._slots = lists[:3]
        self._query_starts, self._key_lengths = lists[3:5]
        self._block_table = lists[5].reshape(requests, -1)
        # Which region each row of the block table describes, and how many of its blocks.
        self._regions: list[Region | None] = [None] * requests
        self._num_blocks = [0] * requests

    def fill(self, batch: FlatBatch) -> Form:
        """Write a batch; returns its form, by which `view` shows it."""
        lengths, regions = batch.query_lengths, batch.regions
        self._input_ids[: len(batch.input_ids)] = batch.input_ids
        num_decodes = lengths.count(1)
        self._fill_decodes(batch, num_decodes)
        if num_decodes < len(lengths):
            self._fill_chunks(batch, num_decodes)
        key_lengths = [*map(operator.add, batch.starts, lengths)]
        self._key_lengths[: len(key_lengths)] = key_lengths
        for index, region in enumerate(regions):
            if (
                self._num_blocks[index] != len(region.block_ids)
                or self._regions[index] is not region
            ):
                self._fill_table(index, region)
        return lengths, -(-max(key_lengths) // self._limits.block_size)

    def pad(self, form: Form, *, num_requests: int, max_blocks: int) -> Form:
        """Add decoding requests that nobody is to a batch of decoding requests.

        They have one token, in the padding block; `max_blocks` is the width to cut the table at.
        """
        padding = slice(len(form[0]), num_requests)
        for values, value in (
            (self._input_ids, 0),
            (self._positions, 0),
            (self._slots, PADDING_BLOCK * self._limits.block_size),
            (self._key_lengths, 1),
        ):
            values[padding] = value
        return (1,) * num_requests, max_blocks

    def view(self, form: Form) -> PassTensors:
        """Windows of the buffers, for any batch of this form: they hold what is filled in."""
        query_lengths, max_blocks = form
        num_tokens, num_requests = sum(query_lengths), len(query_lengths)
        self._query_starts[: num_requests + 1] = [*accumulate(query_lengths, initial=0)]
        rest = self.size - sum(self._sizes)
        *lists, table = self._buffer.split_with_sizes([*self._sizes, rest])
        used = [num_tokens] * 3 + [num_requests + 1, num_requests]
        cut = [window[:count] for window, count in zip(lists, used, strict=True)]
        input_ids, positions, slots, query_starts, key_lengths = cut
        layout = BatchLayout(
            slots=slots,
            query_starts=query_starts,
            key_lengths=key_lengths,
            host_key_lengths=self._key_lengths[:num_requests],
            block_table=table.view(self._limits.max_num_seqs, -1)[:num_requests, :max_blocks],
            query_lengths=query_lengths,
            num_decodes=query_lengths.count(1),
            max_key_length=max_blocks * self._limits.block_size,
        )
        return PassTensors(input_ids, positions, layout)

    def _fill_decodes(self, batch: FlatBatch, count: int) -> None:
        """Positions and slots of the requests with one new token, which come first."""
        starts, size = batch.starts[:count], self._limits.block_size
        self._positions[:count] = [
            start + region.num_dropped_tokens
            for start, region in zip(starts, batch.regions, strict=False)
        ]
        self._slots[:count] = [
            region.block_ids[start // size] * size + start % size
            for start, region in zip(starts, batch.regions, strict=False)
        ]

    def _fill_chunks(self, batch: FlatBatch, first: int) -> None:
        """Positions and slots of the new tokens of the other requests."""
        size, row = self._limits.block_size, first
        for start, count, region in zip(
            batch.starts[first:], batch.query_lengths[first:], batch.regions[first:], strict=True
        ):
            rows, places = slice(row, row + count), np.arange(start, start + count)
            first_block = start // size
            blocks = np.array(region.block_ids[first_block : -(-(start + count) // size)])
            self._positions[rows] = places + region.num_dropped_tokens
            self._slots[rows] = blocks[places // size - first_block] * size + places % size
            row += count

    def _fill_table(self, index: int, region: Region) -> None:
        """A request's blocks in row `index`; blocks written in an earlier step stay."""
        count = len(region.block_ids)
        known = self._num_blocks[index] if self._regions[index] is region else 0
        self._block_table[index, known:count] = region.block_ids[known:]
        self._block_table[index, count:] = PADDING_BLOCK
        self._regions[index], self._num_blocks[index] = region, count


def select_rows(hidden: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """The given rows (R, C) of hidden states (N, C)."""
    if not rows:
        return hidden[:0]
    if rows[-1] - rows[0] == len(rows) - 1 and all(map(operator.lt, rows, rows[1:])):
        return hidden[rows[0] : rows[-1] + 1]
    return hidden.index_select(0, torch.tensor(rows, dtype=torch.int64, device=hidden.device))
