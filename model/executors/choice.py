"""make_executor: which executor runs a loaded model."""

from __future__ import annotations

from model.executors.executor import Executor, PassLimits
from model.executors.native_executor import NativeExecutor
from model.executors.torch_executor import TorchExecutor
from model.formats.loader import LoadedModel


def make_executor(loaded: LoadedModel, *, limits: PassLimits) -> Executor:
    """Make what runs this model on its device, its pool and buffers allocated."""
    if loaded.native is not None:
        return NativeExecutor(loaded.native, limits=limits, dtype=loaded.dtype)
    return TorchExecutor(loaded.model, limits=limits, dtype=loaded.dtype, device=loaded.device)
