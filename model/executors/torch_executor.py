"""TorchExecutor: runs any model in plain torch, on any device torch knows.

The path of models and devices without kernels, and the reference of the others. One answer's bits
may vary with its company by float32 rounding; see model/ops.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cache.view import AttentionBackend, CacheView
from model.device_queue import CudaQueue
from model.executors.batch_buffers import BatchBuffers, Form, select_rows
from model.executors.executor import FlatBatch, PassLimits, PassOutput, Ready
from model.executors.staging import Staging, upload_pass
from model.kv_pool import make_pool
from model.pass_context import PassContext
from model.torch_attention import TorchAttention
from model.transformer import Transformer


class TorchExecutor:
    """An Executor over a Transformer; see model.executors.executor.

    Args:
        model: On its device.
        limits: The largest pass, and the size of the pool.
        dtype: Of the pool.
        device: Of the model.
        backend: How attention reads and writes the pool.
    """

    def __init__(
        self,
        model: Transformer,
        *,
        limits: PassLimits,
        dtype: torch.dtype,
        device: torch.device,
        backend: AttentionBackend | None = None,
    ) -> None:
        if device.type == "cuda":  # cuDNN plans anew for each length of a prompt's chunk
            torch.backends.cuda.enable_cudnn_sdp(enabled=False)
        self._model = model
        self._backend = backend or TorchAttention()
        self.device = device
        self.vocab_size = model.config.vocab_size
        self.pool = make_pool(
            model.config,
            num_blocks=limits.num_blocks,
            block_size=limits.block_size,
            dtype=dtype,
            device=device,
        )
        self._buffers = BatchBuffers(limits)
        self._staging = (
            None
            if device.type == "cpu"
            else Staging(self._buffers.size, device=device, dtype=torch.int64, queue=CudaQueue())
        )
        self._form: Form = (), 0

    def warm_up(self) -> None:
        """Do nothing: what is slow the first time is in every pass alike."""

    def prepare(self, batch: FlatBatch) -> None:
        """Lay a pass out in the static buffers, once a step."""
        self._form = self._buffers.fill(batch)

    def submit(self, batch: FlatBatch) -> Ready:
        """Run the pass that was prepared, writing keys and values."""
        tensors = self._buffers.view(self._form)
        if self._staging is not None:
            tensors, _ = upload_pass(tensors, self._staging)
        input_ids, positions, layout = tensors
        context = PassContext(positions, CacheView(self.pool, layout, self._backend))
        with torch.inference_mode():
            hidden = self._model.hidden_states(input_ids, context)
            logits = self._model.logits(select_rows(hidden, batch.sample_rows))
        return Ready(PassOutput(hidden, logits))

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute the logits (R, V), float32, of hidden states (R, C)."""
        with torch.inference_mode():
            return self._model.logits(hidden)
