"""make_executor: which executor runs a loaded model."""

from __future__ import annotations

import torch

from model.executors.executor import Executor, PassLimits
from model.executors.native_executor import NativeExecutor
from model.executors.torch_executor import TorchExecutor
from model.formats.loader import LoadedModel


def make_executor(loaded: LoadedModel, *, limits: PassLimits, cache_dtype: torch.dtype) -> Executor:
    """Make what runs this model on its device, its pool and buffers allocated.

    Args:
        loaded: The model.
        limits: The largest pass, and the size of the pool.
        cache_dtype: Of the pool; int8 is the native kernels' alone.
    """
    if loaded.native is not None:
        return NativeExecutor(loaded.native, limits=limits, dtype=cache_dtype)
    return TorchExecutor(loaded.model, limits=limits, dtype=cache_dtype, device=loaded.device)
