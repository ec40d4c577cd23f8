"""NativeExecutor: runs passes with the native kernels, one call a step, over memory that stays.

Calls are bound to the buffers once for each form of batch, see native_calls.py; a step of the form
of the last one asks torch for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from model.executors.batch_buffers import BatchBuffers, Form, select_rows
from model.executors.executor import FlatBatch, PassLimits, PassOutput, Ready
from model.kv_pool import make_pool
from model.native import NativeTransformer
from model.native_calls import BoundLogits, BoundPass


class NativeExecutor:
    """An Executor over a NativeTransformer; see model.executors.executor.

    Args:
        model: Its packed weights.
        limits: The largest pass, and the size of the pool.
        dtype: Of the pool, float32, bfloat16 or int8; the kernels order a block in their own way.
    """

    def __init__(self, model: NativeTransformer, *, limits: PassLimits, dtype: torch.dtype) -> None:
        self._model = model
        self.device = torch.device("cpu")
        self.vocab_size = model.config.vocab_size
        self.pool = make_pool(
            model.config, num_blocks=limits.num_blocks, block_size=limits.block_size, dtype=dtype
        )
        self._buffers = BatchBuffers(limits)
        # Memory that the system has to clear for each step anew costs more than what it is for.
        self._hidden = torch.empty(limits.max_num_batched_tokens, model.config.hidden_size)
        self._logits = torch.empty(limits.max_logit_rows, self.vocab_size)
        self._bound = self._bind(((1,), 1))

    def warm_up(self) -> None:
        """Do nothing: what is slow the first time is in every pass alike."""

    def prepare(self, batch: FlatBatch) -> None:
        """Lay a pass out in the static buffers, once a step."""
        form = self._buffers.fill(batch)
        if form != self._bound.form:
            self._bound = self._bind(form)

    def submit(self, batch: FlatBatch) -> Ready:
        """Run the pass that was prepared, writing keys and values."""
        bound, rows = self._bound, batch.sample_rows
        hidden = bound.run()
        if bound.all_logits is not None and len(rows) == len(batch.query_lengths):
            return Ready(PassOutput(hidden, bound.all_logits()))
        out = self._logits[: len(rows)]
        if rows:
            self._model.logits(select_rows(hidden, rows), out=out)
        return Ready(PassOutput(hidden, out))

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute the logits (R, V), float32, of hidden states (R, C)."""
        return self._model.logits(hidden)

    def _bind(self, form: Form) -> _BoundForm:
        """Ready the kernels' calls for batches of a form."""
        query_lengths, _ = form
        num_tokens = sum(query_lengths)
        hidden = self._hidden[:num_tokens]
        run = self._model.bind(self._buffers.view(form), pool=self.pool, out=hidden)
        all_logits = None
        if num_tokens == len(query_lengths):  # all decode, and so usually all are sampled
            all_logits = self._model.bind_logits(hidden, out=self._logits[:num_tokens])
        return _BoundForm(form, run, all_logits)


@dataclass(frozen=True, slots=True)
class _BoundForm:
    """The calls that serve every batch of one form."""

    form: Form
    run: BoundPass
    all_logits: BoundLogits | None
    """What computes next where every row is wanted, if that may be."""
