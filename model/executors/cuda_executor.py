"""CudaExecutor: runs passes on a GPU with the fused kernels of model/cuda.

A step's integers go over in one copy, as int32; nothing in a pass waits for the device. Imported
only where a model runs on one.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cache.blocks import PADDING_BLOCK
from cache.manager import Region
from cache.view import AttentionBackend
from model.cuda.attention import TritonAttention, prompt_tiles
from model.cuda.graphs import BUCKETS, Capture, DecodeGraphs, bucket_for, width_for
from model.cuda.transformer import CudaTransformer
from model.device_queue import CudaQueue, DeviceQueue
from model.executors.batch_buffers import BatchBuffers, Form
from model.executors.executor import FlatBatch, PassLimits, PassOutput, Ready
from model.executors.staging import Staging, upload_pass
from model.kv_pool import make_pool
from model.pass_context import PassTensors


class CudaExecutor:
    """An Executor over a CudaTransformer; see model.executors.executor.

    Args:
        model: On its device.
        limits: The largest pass, and the size of the pool.
        dtype: Of the pool, and of the model's matrices.
        device: Of the model.
        capability: Of the card: 80 for compute capability 8.0.
        queue: What brings integers to the device.
        capture: What captures decode passes; None launches each anew.
    """

    def __init__(
        self,
        model: CudaTransformer,
        *,
        limits: PassLimits,
        dtype: torch.dtype,
        device: torch.device,
        capability: int,
        queue: DeviceQueue | None = None,
        capture: Capture | None = None,
    ) -> None:
        config = model.config
        self.device = device
        self.vocab_size = config.vocab_size
        self.pool = make_pool(
            config,
            num_blocks=limits.num_blocks,
            block_size=limits.block_size,
            dtype=dtype,
            device=device,
        )
        self._model = model
        attention = TritonAttention(capability=capability)
        self._attention: AttentionBackend = attention
        self._tokens_per_tile = attention.tokens_per_tile(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=dtype,
        )
        self._buffers = BatchBuffers(limits)
        most_tiles = limits.max_num_batched_tokens + limits.max_num_seqs
        self._staging = Staging(
            self._buffers.size + 2 * most_tiles + limits.max_num_seqs + limits.max_drafts,
            device=device,
            dtype=torch.int32,
            queue=queue or CudaQueue(),
        )
        self._limits = limits
        self._graphs = DecodeGraphs[PassOutput](capture) if capture else None
        self._form: Form = (), 0

    def warm_up(self) -> None:
        """Capture the decode passes of short requests, the largest first: it needs most memory."""
        if self._graphs is None:
            return
        most = min(self._limits.max_num_seqs, self._limits.max_num_batched_tokens, BUCKETS[-1])
        region = Region(
            block_ids=[PADDING_BLOCK],
            block_size=self._limits.block_size,
            num_cached_tokens=0,
            digest=b"",
            num_committed_blocks=0,
        )
        for count in sorted({min(bucket, most) for bucket in BUCKETS}, reverse=True):
            rows = range(count)
            batch = FlatBatch([0] * count, [0] * count, (1,) * count, [region] * count, rows)
            self.prepare(batch)
            self.submit(batch)

    def prepare(self, batch: FlatBatch) -> None:
        """Lay a pass out on the host, once a step."""
        self._form = self._buffers.fill(batch)

    def submit(self, batch: FlatBatch) -> Ready:
        """Give the device the pass that was prepared; what comes of it is used there in order."""
        with torch.inference_mode():
            padded = self._padded(batch)
            if padded is not None:
                return self._replay(padded, count=len(batch.starts))
            tensors, rows = self._upload(batch)
            return Ready(self._run(tensors, rows))

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute the logits (R, V), float32, of hidden states (R, C)."""
        with torch.inference_mode():
            return self._model.logits(hidden)

    def _run(self, tensors: PassTensors, rows: Tensor | None) -> PassOutput:
        """Launch a pass; `rows` are those whose logits are wanted, None is all."""
        hidden, normed = self._model.forward(tensors, self.pool, self._attention)
        wanted = normed if rows is None else normed.index_select(0, rows)
        return PassOutput(hidden, self._model.output(wanted))

    def _padded(self, batch: FlatBatch) -> Form | None:
        """The captured form that a batch fits in; None for one that is not captured."""
        count, (_, num_blocks) = len(batch.starts), self._form
        bucket = bucket_for(count)
        decodes_all = len(batch.input_ids) == count == len(batch.sample_rows)
        if self._graphs is None or not decodes_all or bucket is None:
            return None
        limits = self._limits
        width = width_for(num_blocks, block_size=limits.block_size, max_blocks=limits.max_blocks)
        return self._buffers.pad(
            self._form, num_requests=min(bucket, limits.max_num_seqs), max_blocks=width
        )

    def _replay(self, form: Form, *, count: int) -> Ready:
        """Run a decode pass by the graph of its form; the first `count` rows are somebody's."""
        assert self._graphs is not None
        tensors, _ = upload_pass(self._buffers.view(form), self._staging)
        output = self._graphs.run(form, lambda: self._run(tensors, None))
        return Ready(PassOutput(output.hidden[:count], output.logits[:count]))

    def _upload(self, batch: FlatBatch) -> tuple[PassTensors, Tensor | None]:
        """Bring the pass to the device, with the rows whose logits are wanted unless all are."""
        lengths, rows = batch.query_lengths, batch.sample_rows
        extras: list[NDArray[np.int64]] = []
        if len(lengths) > lengths.count(1):
            extras.append(prompt_tiles(lengths, tokens=self._tokens_per_tile))
        takes_all = len(rows) == len(batch.input_ids)
        if not takes_all:
            extras.append(np.array(rows, dtype=np.int64))
        tensors, there = upload_pass(self._buffers.view(self._form), self._staging, extras)
        selected = None if takes_all else there.pop()
        if there:
            layout = tensors.layout.with_tiles(there.pop())
            tensors = tensors._replace(layout=layout)
        return tensors, selected
