"""PackedMemory: where packed weights lie, in few large regions that the system maps by huge pages.

Reading all weights at every step is what a decode step does; through pages of 4 KiB the processor
reads them a quarter slower. Owned by the kernels; a region lives as long as any tensor in it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

REGION_BYTES = 32 * 2**20
_ALIGNMENT = 64


class PackedMemory:
    """Hands out pieces of memory, never to be given back one by one."""

    def __init__(self) -> None:
        self._region = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def take(self, size: int) -> Tensor:
        """Return `size` bytes, uint8, aligned to a cache line, with whatever is in them."""
        self._used += -(self._region.data_ptr() + self._used) % _ALIGNMENT
        if self._used + size > len(self._region):
            # NumPy asks for huge pages under large arrays; a page is taken when first written.
            region = np.empty(max(REGION_BYTES, size + _ALIGNMENT), np.uint8)
            self._region = torch.from_numpy(region)
            self._used = -self._region.data_ptr() % _ALIGNMENT
        piece = self._region[self._used : self._used + size]
        self._used += size
        return piece
