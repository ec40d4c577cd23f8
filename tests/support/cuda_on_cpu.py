"""The GPU's executor on the CPU: its kernels interpreted, its copies done at once."""

from __future__ import annotations

import interpreted  # noqa: F401 - before anything of model.cuda
import torch
from flat_batches import LIMITS
from slow_device import DirectQueue

from model.cuda.graphs import Capture
from model.cuda.transformer import CudaTransformer
from model.device_queue import DeviceQueue
from model.executors.cuda_executor import CudaExecutor
from model.executors.executor import PassLimits
from model.transformer import Transformer


def cuda_executor(
    model: Transformer,
    *,
    limits: PassLimits = LIMITS,
    dtype: torch.dtype = torch.float32,
    queue: DeviceQueue | None = None,
    capture: Capture | None = None,
) -> CudaExecutor:
    """An executor over a Transformer's weights, which it fuses."""
    return CudaExecutor(
        CudaTransformer(model),
        limits=limits,
        dtype=dtype,
        device=torch.device("cpu"),
        capability=80,
        queue=queue or DirectQueue(),
        capture=capture,
    )
