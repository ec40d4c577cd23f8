"""TorchAttention: attention over the paged cache in plain torch, wherever there is no kernel.

Decode rows are gathered into one padded batch; each prompt chunk is computed by itself.
Arithmetic is float32 on a CPU; on a GPU scores are float32, the rest what the queries have.
Keeps no state.

Promise: a request's result does not depend on what other requests hold, not even if it is not a
number, and varies with the shape of the batch by float32 rounding only.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from cache.view import BatchLayout


class TorchAttention:
    """An AttentionBackend (see cache/view.py) of indexed copies and matrix products."""

    def write(self, cache: Tensor, slots: Tensor, new: Tensor) -> None:
        """Copy `new` (N, Hkv, D) to its `slots` of one layer's (blocks, block size, Hkv, D)."""
        cache.view(-1, *new.shape[1:]).index_copy_(0, slots, new.to(cache.dtype))

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        layout: BatchLayout,
        *,
        scale: float,
        window: int | None,
    ) -> Tensor:
        """Causal attention of q (N, H, D) over each row's own request; returns (N, H, D)."""
        out = torch.empty_like(q)
        num_decodes = layout.num_decodes
        if num_decodes:
            out[:num_decodes] = _decode(
                q[:num_decodes], keys, values, layout, scale=scale, window=window
            )
        start = num_decodes
        chunks = layout.query_lengths[num_decodes:]
        lengths = layout.host_key_lengths[num_decodes:].tolist()
        tables = layout.block_table[num_decodes:]
        for num_new, length, table in zip(chunks, lengths, tables, strict=True):
            rows = slice(start, start + num_new)
            first = 0 if window is None else max(0, length - num_new - window + 1)
            out[rows] = _chunk(
                q[rows],
                _read(keys, table, first, length).to(q.dtype),
                _read(values, table, first, length).to(q.dtype),
                scale=scale,
                window=window,
            )
            start += num_new
        return out


def _read(cache: Tensor, table: Tensor, first: int, end: int) -> Tensor:
    """Return tokens [first, end) of one request from one layer's cache: (end - first, Hkv, D)."""
    block_size = cache.shape[1]
    first_block = first // block_size
    blocks = table[first_block : -(-end // block_size)]
    offset = first_block * block_size
    return cache[blocks].flatten(0, 1)[first - offset : end - offset]


def _chunk(q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None) -> Tensor:
    """Attend from the T last of S tokens: q (T, H, D), k and v (S, Hkv, D) -> (T, H, D)."""
    num_new, num_keys = len(q), len(k)
    position = torch.arange(num_keys - num_new, num_keys, device=q.device)[:, None]
    key = torch.arange(num_keys, device=q.device)
    visible = key <= position  # (T, S)
    if window is not None:
        visible &= key > position - window
    out = functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        attn_mask=visible,
        scale=scale,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1)


def _decode(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    layout: BatchLayout,
    *,
    scale: float,
    window: int | None,
) -> Tensor:
    """Attend from one new token of each of B requests: q (B, H, D) -> (B, H, D)."""
    (num_rows, num_heads, head_dim), num_kv_heads = q.shape, keys.shape[2]
    blocks, visible = _visible_blocks(layout, keys.shape[1], num_rows=num_rows, window=window)

    def gather(cache: Tensor) -> Tensor:
        tokens = cache[blocks].flatten(1, 2)  # (B, S, Hkv, D)
        return tokens.transpose(1, 2).to(q.dtype, memory_format=torch.contiguous_format)

    # What lies behind a request's last token is some other request's past: it may be anything,
    # and a weight of zero would not hide a value that is not a number.
    hidden = ~visible[:, None]  # (B, 1, S)
    v = gather(values).masked_fill(hidden[..., None], 0.0)
    grouped = q.view(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)
    # Scores of half precision would lose more than the products themselves.
    scores = (grouped.float() @ gather(keys).float().mT) * scale  # (B, Hkv, H / Hkv, S)
    weights = scores.masked_fill(hidden[:, None], -torch.inf).softmax(dim=-1)
    return (weights.to(q.dtype) @ v).view(num_rows, num_heads, head_dim)


def _visible_blocks(
    layout: BatchLayout, block_size: int, *, num_rows: int, window: int | None
) -> tuple[Tensor, Tensor]:
    """Return which blocks (B, M) to read and which of their tokens (B, M x block size) are seen."""
    table = layout.block_table[:num_rows]
    lengths = layout.key_lengths[:num_rows, None]
    num_blocks = -(-layout.max_key_length // block_size)
    start = torch.zeros_like(lengths)
    if window is not None:
        # A window may begin on the last token of a block, hence one more block than it fills.
        num_blocks = min(num_blocks, (window + block_size - 2) // block_size + 1)
        start = (lengths - window).clamp(min=0)
    index = start // block_size + torch.arange(num_blocks, device=table.device)
    blocks = table.gather(1, index.clamp(max=table.shape[1] - 1))
    offsets = torch.arange(block_size, device=table.device)
    token = (index[..., None] * block_size + offsets).flatten(1)
    return blocks, (token >= start) & (token < lengths)
