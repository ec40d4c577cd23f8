"""TritonAttention: attention that reads the paged cache in place, each key once.

Decode rows are split over programs of a fixed number of keys and merged in order; prompts are
divided into tiles of new tokens. A row's bits follow from its own length and the launch table
alone. Keeps no memory: what it needs within a layer belongs to the pass, which may be captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cache.view import BatchLayout
from model.cuda.kernels.attention_kernels import attend_prompt, decode_merge, decode_split
from model.cuda.launch_table import SPLIT_TOKENS, decode_launch, prompt_launch
from model.torch_attention import TorchAttention


class TritonAttention:
    """An AttentionBackend (see cache/view.py) of Triton kernels.

    Args:
        capability: Of the card: 80 for compute capability 8.0.
        split: Keys in a program of the decode kernel; another number is for tests.
    """

    def __init__(self, *, capability: int, split: int = SPLIT_TOKENS) -> None:
        self._capability = capability
        self._split = split
        self._writer = TorchAttention()

    def write(self, cache: Tensor, slots: Tensor, new: Tensor) -> None:
        """Copy `new` (N, Hkv, D) to its `slots` of one layer's (blocks, block size, Hkv, D)."""
        self._writer.write(cache, slots, new)

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        layout: BatchLayout,
        *,
        scale: float,
        window: int | None,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Causal attention of q (N, H, D) over each row's own request; returns (N, H, D)."""
        assert keys.is_contiguous()
        assert cap is None, "a model with soft caps runs in torch"
        assert sinks is None, "and so does one with sinks"
        q, out = q.contiguous(), torch.empty_like(q, memory_format=torch.contiguous_format)
        if layout.num_decodes:
            self._decode(q, keys, values, layout, scale=scale, window=window, out=out)
        if layout.num_decodes < len(layout.query_lengths):
            self._prompts(q, keys, values, layout, scale=scale, window=window, out=out)
        return out

    def tokens_per_tile(self, *, num_heads: int, num_kv_heads: int, head_dim: int,
                        dtype: torch.dtype) -> int:  # fmt: skip
        """How many new tokens of a request one program of the prompt kernel has."""
        group = num_heads // num_kv_heads
        launch = prompt_launch(
            head_dim=head_dim, group=group, dtype=dtype, capability=self._capability
        )
        return launch.rows // group

    def _decode(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        layout: BatchLayout,
        *,
        scale: float,
        window: int | None,
        out: Tensor,
    ) -> None:
        """Attend from the leading rows, one of each request."""
        (_, heads, head_dim), (_, page, kv_heads, _) = q.shape, keys.shape
        rows, splits = layout.num_decodes, ceil(layout.max_key_length / self._split)
        launch = decode_launch(head_dim=head_dim, group=heads // kv_heads, dtype=q.dtype)
        # Read back within this call, and only where it was written.
        weights = torch.empty(rows * heads * splits, dtype=torch.float32, device=q.device)
        partials = torch.empty(weights.numel() * head_dim, dtype=torch.float32, device=q.device)
        room = 1 << (head_dim - 1).bit_length()
        decode_split[rows, kv_heads, splits](
            q, keys, values, layout.block_table, layout.key_lengths, partials, weights, scale,
            layout.block_table.stride(0), splits,
            WINDOW=window or 0, GROUP=heads // kv_heads, ROWS=launch.rows, KV_HEADS=kv_heads,
            D=head_dim, D_ROOM=room, PAGE=page, TILE=launch.tile, SPLIT=self._split,
            IEEE=q.dtype == torch.float32, num_warps=launch.warps, num_stages=launch.stages,
        )  # fmt: skip
        decode_merge[rows, heads](
            partials, weights, layout.key_lengths, out, splits,
            D=head_dim, D_ROOM=room, SPLIT=self._split, num_warps=1,
        )  # fmt: skip

    def _prompts(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        layout: BatchLayout,
        *,
        scale: float,
        window: int | None,
        out: Tensor,
    ) -> None:
        """Attend from the rows of the requests with several new tokens."""
        (_, heads, head_dim), (_, page, kv_heads, _) = q.shape, keys.shape
        group = heads // kv_heads
        launch = prompt_launch(
            head_dim=head_dim, group=group, dtype=q.dtype, capability=self._capability
        )
        tiles = layout.tiles
        if tiles is None:
            tiles = torch.from_numpy(
                prompt_tiles(layout.query_lengths, tokens=launch.rows // group)
            ).to(q.device, non_blocking=True)
        attend_prompt[len(tiles), kv_heads](
            q, keys, values, layout.block_table, layout.key_lengths, layout.query_starts, tiles,
            out, scale, layout.block_table.stride(0),
            WINDOW=window or 0, GROUP=group, ROWS=launch.rows, KV_HEADS=kv_heads, D=head_dim,
            D_ROOM=1 << (head_dim - 1).bit_length(), PAGE=page, TILE=launch.tile,
            IEEE=q.dtype == torch.float32, num_warps=launch.warps, num_stages=launch.stages,
        )  # fmt: skip


def prompt_tiles(query_lengths: Sequence[int], *, tokens: int) -> NDArray[np.int64]:
    """The tiles (T, 2) of all requests with several new tokens: request, and which of its tiles.

    Args:
        query_lengths: New tokens of each request.
        tokens: New tokens in a tile.
    """
    tiles = [
        (request, tile)
        for request, count in enumerate(query_lengths)
        if count > 1
        for tile in range(-(-count // tokens))
    ]
    return np.array(tiles, dtype=np.int64).reshape(-1, 2)
