"""ExecutorFactory: which executor runs a loaded model, and what its passes take beside the pool."""

from __future__ import annotations

import importlib.util
import logging
import shutil
from typing import TYPE_CHECKING

import torch

from model.executors.executor import Executor, PassLimits
from model.executors.memory_profile import profile_passes
from model.executors.native_executor import NativeExecutor
from model.executors.torch_executor import TorchExecutor
from model.formats.loader import LoadedModel
from model.native_support import unsupported_on_gpu

if TYPE_CHECKING:
    from model.cuda.transformer import CudaTransformer

logger = logging.getLogger(__name__)


class ExecutorFactory:
    """Makes executors of one model.

    Args:
        loaded: The model; on a GPU its weights are fused, if the kernels there can run it.
        cache_dtype: Of the pool; int8 is the native kernels' alone.
    """

    def __init__(self, loaded: LoadedModel, *, cache_dtype: torch.dtype) -> None:
        self._loaded = loaded
        self.cache_dtype = cache_dtype
        self._cuda = _fused(loaded) if loaded.device.type == "cuda" else None

    @property
    def uses_triton(self) -> bool:
        """Whether the model runs on a GPU's own kernels."""
        return self._cuda is not None

    def make(self, limits: PassLimits, *, captures: bool = True) -> Executor:
        """Make what runs the model on its device, its pool and buffers allocated.

        Args:
            limits: The largest pass, and the size of the pool.
            captures: Whether decode passes are captured where the device can.
        """
        loaded = self._loaded
        if loaded.native is not None:
            return NativeExecutor(loaded.native, limits=limits, dtype=self.cache_dtype)
        if self._cuda is None:
            return TorchExecutor(
                loaded.model, limits=limits, dtype=self.cache_dtype, device=loaded.device
            )
        from model.cuda.graphs import CudaCapture  # noqa: PLC0415 - Triton is an optional extra
        from model.executors.cuda_executor import CudaExecutor  # noqa: PLC0415 - and so here

        major, minor = torch.cuda.get_device_capability(loaded.device)
        return CudaExecutor(
            self._cuda,
            limits=limits,
            dtype=self.cache_dtype,
            device=loaded.device,
            capability=10 * major + minor,
            capture=CudaCapture() if captures else None,
        )

    def measure_peak(self, limits: PassLimits) -> int:
        """Bytes that the largest passes take on the device beside weights and pool; 0 on a CPU.

        Args:
            limits: With a pool as small as may be: what is in it does not matter.
        """
        if self._loaded.device.type == "cpu":
            return 0
        return profile_passes(self.make(limits, captures=False), limits)


def _fused(loaded: LoadedModel) -> CudaTransformer | None:
    """The model in the form of the kernels for GPUs; None if they cannot run it."""
    problem = _triton_problem(loaded)
    if problem is not None:
        logger.warning("torch runs this model: %s", problem)
        return None
    from model.cuda.transformer import CudaTransformer  # noqa: PLC0415 - Triton is an optional extra

    return CudaTransformer(loaded.model)


def _triton_problem(loaded: LoadedModel) -> str | None:
    """Say what keeps the kernels for GPUs from running a model; None if nothing does."""
    feature = unsupported_on_gpu(loaded.config)
    if feature is not None:
        return f"the kernels for GPUs lack {feature}"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        return "Triton needs a C compiler, and there is none"
    return None
