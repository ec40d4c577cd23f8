"""KVCachePool: the keys and values of every request, in one tensor allocated once at start.

It knows how many bytes a token takes and where a block lies. It never decides who owns a block:
that is the business of KVCacheManager, which deals in integers only. The engine owns the pool.

    storage  (2, L, blocks, block size, Hkv, D)

                     block 0     block 1     block 2     block 3
    keys,   layer 0  [padding]   [........]  [........]  [........]   one dot is one token:
    keys,   layer 1  [padding]   [........]  [........]  [........]   Hkv heads of D numbers
    values, layer 0  [padding]   [........]  [........]  [........]
    values, layer 1  [padding]   [........]  [........]  [........]
                                  ^ slot 8 = block 1 x block size 8 + offset 0

A block id names the same column in every layer, for keys and for values, so one list of ids says
where all of a request lives. Nothing is ever moved: a request grows by being given another
column, and it ends by giving its columns back. Inside a block the native kernels keep an order of
their own (model/kernels/kvserve.h): whoever writes a pool is the one that can read it.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

SCALE_BYTES = 2
"""Of the scale that belongs to a head of one token in an int8 pool."""
_HUGE_PAGE = 2 * 2**20
_GOLDEN_SECTION = (math.sqrt(5) - 1) / 2


class KVCachePool:
    """Keys and values of all layers, divided into blocks of a fixed number of tokens.

    Args:
        num_layers: Layers of the model, L.
        num_blocks: Blocks in all; the first is the padding block, which no request is given.
        block_size: Tokens in a block, a power of two.
        num_kv_heads: Key/value heads of a layer, Hkv.
        head_dim: Numbers in a head, D.
        dtype: Type of the stored numbers. int8 ones are followed, in each head of each token, by
            the SCALE_BYTES of the bfloat16 scale by which they are multiplied.
        device: Where the pool lives.

    Raises:
        ValueError: A size that cannot be, with the value given.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        if num_blocks < 2:
            raise ValueError(
                f"num_blocks must be at least 2 (one is for padding), but is {num_blocks}"
            )
        if block_size < 1 or block_size & (block_size - 1):
            raise ValueError(f"block_size must be a power of two, but is {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.head_dim = head_dim
        width = _stored_width(head_dim, dtype)
        block_bytes = block_size * num_kv_heads * width * dtype.itemsize
        apart = num_blocks + _spare_blocks(num_blocks, block_bytes=block_bytes)
        shape = (2, num_layers, apart, block_size, num_kv_heads, width)
        self.storage = _zeros(shape, dtype=dtype, device=torch.device(device))[:, :, :num_blocks]

    def keys(self, layer: int) -> Tensor:
        """The keys of one layer, (num_blocks, block_size, Hkv, D), as a view of the storage."""
        return self.storage[0, layer]

    def values(self, layer: int) -> Tensor:
        """The values of one layer, (num_blocks, block_size, Hkv, D), as a view of the storage."""
        return self.storage[1, layer]

    @property
    def num_bytes(self) -> int:
        """Bytes of all blocks; the room between layers is never touched."""
        return self.storage.nbytes

    @staticmethod
    def bytes_per_token(
        num_layers: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype
    ) -> int:
        """Bytes that one token takes: a key and a value in every head of every layer."""
        return 2 * num_layers * num_kv_heads * _stored_width(head_dim, dtype) * dtype.itemsize


def _stored_width(head_dim: int, dtype: torch.dtype) -> int:
    """Elements that a head of one token takes, its scale included."""
    return head_dim + SCALE_BYTES if dtype == torch.int8 else head_dim


def _spare_blocks(num_blocks: int, *, block_bytes: int) -> int:
    """Blocks to leave free behind each layer, so that the layers do not reach huge pages together.

    The system clears a page of memory when it is first written to. Layers that lie a whole number
    of huge pages apart would all begin one with the same block, and the step that gets that block
    would clear a page for each of them, which was measured to hold up every stream twentyfold. At
    golden sections of a page they begin evenly spread, however many they are.
    """
    layer_bytes = num_blocks * block_bytes
    if layer_bytes < _HUGE_PAGE:
        return 0
    candidates = range(_HUGE_PAGE // block_bytes + 1)
    aim = _HUGE_PAGE * _GOLDEN_SECTION
    return min(
        candidates, key=lambda spare: abs((layer_bytes + spare * block_bytes) % _HUGE_PAGE - aim)
    )


def _zeros(shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros, not garbage: attention multiplies what it masks by 0, and 0 x NaN would be NaN.

    On a CPU they come from calloc by way of NumPy: the address space is taken now, but a page of
    memory only when it is first written, so that a large pool costs no time at start.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(num_bytes, np.uint8)).view(dtype).view(shape)
