"""DeviceSampling: choosing tokens where the logits are, with one wait for what was chosen.

Brings a step's numbers over in one copy and its tokens back in another. Which parameters a row has,
and what they mean for a request, is the sampler's business, which owns it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.cuda.kernels import sampling_kernels
from model.device_queue import DeviceQueue

BLOCK = 1024
"""Logits that are read at a time; part of what a row's bits follow from."""


@dataclass(slots=True)
class RowParams:
    """How each of B rows is drawn, on the host; temperature 0 is greedy."""

    temperature: NDArray[np.float32]
    top_k: NDArray[np.int32]
    top_p: NDArray[np.float64]
    min_p: NDArray[np.float32]


class DeviceSampling:
    """The choosing kernel for one vocabulary.

    Args:
        width: V, the width of the logits.
        device: Where they are.
        queue: What copies to and from the device.
    """

    def __init__(self, width: int, *, device: torch.device, queue: DeviceQueue) -> None:
        self._width = width
        self._words = -(-width // 32)
        self._device = device
        self._queue = queue
        self._pins = device.type == "cuda"
        self._rows = 0
        self._params: tuple[Tensor, ...] = ()
        self._no_mask = torch.zeros(0, dtype=torch.int32, device=device)

    def begin(self, params: RowParams) -> None:
        """Bring over what stays the same while the same requests are sampled."""
        rows = self._rows = len(params.temperature)
        arrays = (params.temperature, params.top_k, params.top_p, params.min_p)
        self._params = tuple(self._there(array) for array in arrays)
        self._no_mask = torch.zeros(rows, dtype=torch.int32, device=self._device)
        self._uniforms = self._host(rows, torch.float64)
        self._results = self._host(2 * rows, torch.int32)

    def choose(
        self,
        logits: Tensor,
        *,
        uniforms: NDArray[np.float64] | None,
        allowed: NDArray[np.int32] | None,
    ) -> tuple[list[int], list[int]]:
        """Choose a token in each row.

        Args:
            logits: (B, V) float32, left unchanged.
            uniforms: (B,) in [0, 1); None where all rows are greedy.
            allowed: (B, words) the tokens that may be chosen; None is all.

        Returns:
            The tokens (B,), and what became of each row (B,); see native_abi.CHOSEN.
        """
        rows, logits = self._rows, logits.contiguous()
        assert logits.shape == (rows, self._width)
        drawn = self._params[0]
        if uniforms is not None:
            self._uniforms.numpy()[:] = uniforms
            drawn = torch.empty(rows, dtype=torch.float64, device=self._device)
            self._queue.copy(drawn, self._uniforms)
        mask, has_mask = self._no_mask, self._no_mask
        if allowed is not None:
            mask = self._there(np.ascontiguousarray(allowed[:, : self._words]))
            has_mask = torch.ones_like(self._no_mask)
        results = torch.empty(2 * rows, dtype=torch.int32, device=self._device)
        temperature, top_k, top_p, min_p = self._params
        sampling_kernels.choose[rows,](
            logits, mask, has_mask, temperature, top_k, top_p, min_p, drawn,
            results[:rows], results[rows:], self._words, V=self._width, BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
        self._queue.copy(self._results, results)
        self._queue.mark().synchronize()
        found: list[int] = self._results.tolist()
        return found[:rows], found[rows:]

    def _there(self, array: NDArray[np.generic]) -> Tensor:
        """An array on the device, brought there without a wait."""
        host = torch.from_numpy(array)
        pinned = host.pin_memory() if self._pins else host
        there = torch.empty(host.shape, dtype=host.dtype, device=self._device)
        self._queue.copy(there, pinned)
        return there

    def _host(self, size: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(size, dtype=dtype, pin_memory=self._pins)
