"""DeviceQueue: the order of what a device copies and computes, for which the host does not wait."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Mark(Protocol):
    """A point in what a device has been given to do."""

    def synchronize(self) -> object:
        """Wait until the device has come to it."""


class DeviceQueue(Protocol):
    """The order in which a device does what it is given."""

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copy between pinned memory and the device, once it is this copy's turn."""

    def mark(self) -> Mark:
        """Mark this point."""


class CudaQueue:
    """The current stream of a CUDA device."""

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copy without waiting."""
        target.copy_(source, non_blocking=True)

    def mark(self) -> Mark:
        """Mark what was given to the stream so far."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it so
        event.record()
        return event
