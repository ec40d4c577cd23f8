"""Executor: the interface between whoever plans passes and whatever computes them.

A pass is planned in plain integers, prepared once a step, submitted, and its result awaited. An
executor owns the layout of its passes, its static buffers and the pool in the form it reads; it
knows no requests, and chooses no tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from cache.manager import Region
from cache.pool import KVCachePool


@dataclass(frozen=True, kw_only=True, slots=True)
class PassLimits:
    """The largest pass there can be, and the cache it reads; all buffers are allocated for it."""

    max_num_seqs: int
    """Most requests in one pass."""
    max_num_batched_tokens: int
    """Most new tokens in one pass."""
    max_model_len: int
    """Most tokens of one request."""
    num_blocks: int
    """Blocks of the pool, the padding block included."""
    block_size: int
    """Tokens in a block."""
    max_drafts: int = 0
    """Most drafted tokens in one pass; their rows' logits are wanted beside one of each request."""

    @property
    def max_logit_rows(self) -> int:
        """Most rows whose logits one pass computes."""
        return min(self.max_num_seqs + self.max_drafts, self.max_num_batched_tokens)

    @property
    def max_blocks(self) -> int:
        """Most blocks of one request."""
        return -(-self.max_model_len // self.block_size)


class FlatBatch(NamedTuple):
    """The new tokens of all requests of one pass, one request after the other.

    Requests with one new token come first.
    """

    input_ids: Sequence[int]
    """(N,) the new tokens."""
    starts: Sequence[int]
    """(B,) the place of each request's first new token in its region; its position in the text is
    as many further as the region has dropped tokens."""
    query_lengths: tuple[int, ...]
    """(B,) how many new tokens each request has."""
    regions: Sequence[Region]
    """(B,) where each request's keys and values live."""
    sample_rows: Sequence[int]
    """(R,) which of the N rows' logits are wanted, none twice."""


class PassOutput(NamedTuple):
    """Output of a forward pass, valid until the next one is submitted."""

    hidden: Tensor
    """(N, C) hidden states before the last norm, of which `logits` takes any rows."""
    logits: Tensor
    """(R, V) float32, of the rows that were wanted."""


class Pending(Protocol):
    """A pass that has been submitted."""

    def result(self) -> PassOutput:
        """Its tensors; on a device they may still be under way, in order with what uses them."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A pass that was computed when it was submitted."""

    output: PassOutput

    def result(self) -> PassOutput:
        """What was computed."""
        return self.output


class Executor(Protocol):
    """Runs forward passes on one kind of device."""

    @property
    def pool(self) -> KVCachePool:
        """The keys and values, in the form this executor writes and reads."""

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""

    @property
    def vocab_size(self) -> int:
        """V, the width of its logits."""

    def warm_up(self) -> None:
        """Do what would hold up the first requests, where there is anything of that kind."""

    def prepare(self, batch: FlatBatch) -> None:
        """Lay a pass out in the static buffers, once a step."""

    def submit(self, batch: FlatBatch) -> Pending:
        """Run the pass that was prepared, writing keys and values.

        Raises:
            ValueError: An index of the batch is out of its bounds.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute the logits (R, V), float32, of any hidden states (R, C) of the last pass."""
