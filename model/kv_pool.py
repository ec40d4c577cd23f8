"""make_pool: a KVCachePool of the shape that a model's configuration asks for."""

from __future__ import annotations

import torch

from cache.pool import KVCachePool
from model.config import ModelConfig


def make_pool(
    config: ModelConfig,
    *,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> KVCachePool:
    """Allocate a pool for a model; see KVCachePool for the other arguments."""
    return KVCachePool(
        num_layers=config.num_layers,
        num_blocks=num_blocks,
        block_size=block_size,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=dtype,
        device=device,
    )
