"""Staging: brings a step's integers to a device in one copy that nobody waits for.

The host writes into one of two pinned buffers while the copy out of the other may still be under
way; only if a copy from two steps ago were not over yet would it wait. What a device runs is in
order, so one buffer there is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.device_queue import DeviceQueue, Mark
from model.pass_context import PassTensors

NUM_BUFFERS = 2


class Staging:
    """A device buffer of integers, and two pinned ones that are copied to it in turn.

    Args:
        capacity: Integers that a step has at most.
        device: Where they go.
        dtype: Of the integers there.
        queue: What copies.
    """

    def __init__(
        self, capacity: int, *, device: torch.device, dtype: torch.dtype, queue: DeviceQueue
    ) -> None:
        self._queue = queue
        pinned = [
            torch.zeros(capacity, dtype=dtype, pin_memory=device.type == "cuda")
            for _ in range(NUM_BUFFERS)
        ]
        self._pinned = pinned
        self._arrays = [buffer.numpy() for buffer in pinned]
        self._marks: list[Mark | None] = [None] * NUM_BUFFERS
        self._next = 0
        self._device = torch.zeros(capacity, dtype=dtype, device=device)

    def upload(self, arrays: Sequence[NDArray[np.int64]]) -> list[Tensor]:
        """Copy arrays to the device, one behind the other; returns them there, in their shapes."""
        turn = self._next
        self._next = (turn + 1) % NUM_BUFFERS
        mark = self._marks[turn]
        if mark is not None:
            mark.synchronize()
        host, end = self._arrays[turn], 0
        tensors = []
        for array in arrays:
            start, end = end, end + array.size
            host[start:end].reshape(array.shape)[...] = array
            tensors.append(self._device[start:end].view(array.shape))
        self._queue.copy(self._device[:end], self._pinned[turn][:end])
        self._marks[turn] = self._queue.mark()
        return tensors


def upload_pass(
    tensors: PassTensors, staging: Staging, extras: Sequence[NDArray[np.int64]] = ()
) -> tuple[PassTensors, list[Tensor]]:
    """Bring a pass that lies on the host to the device, and other integers with it."""
    input_ids, positions, layout = tensors
    parts = [input_ids, positions, layout.slots, layout.query_starts, layout.key_lengths]
    arrays = [part.numpy() for part in (*parts, layout.block_table)]
    uploaded = staging.upload([*arrays, *extras])
    *lists, table = uploaded[: len(arrays)]
    there = replace(
        layout, slots=lists[2], query_starts=lists[3], key_lengths=lists[4], block_table=table
    )
    return PassTensors(lists[0], lists[1], there), uploaded[len(arrays) :]
