"""TorchAttention: attention over the paged cache in plain torch, wherever there is no kernel.

Decode rows are gathered into one padded batch; each prompt chunk is computed by itself.
Arithmetic is float32 on a CPU; on a GPU scores are float32, the rest what the queries have.
Keeps no state.

Promise: a request's result does not depend on what other requests hold, not even if it is not a
number, and varies with the shape of the batch by float32 rounding only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from cache.view import BatchLayout


def softmax_with_sinks(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Return the softmax of scores (..., H, T, S), of which each head's sink (H,) takes a share."""
    if sinks is None:
        return scores.softmax(dim=-1)
    share = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat((scores, share), dim=-1).softmax(dim=-1)[..., :-1]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rule:
    """How scores become weights, as CacheView.attend has it."""

    scale: float
    window: int | None
    cap: float | None
    sinks: Tensor | None

    def weigh(self, scores: Tensor, *, hidden: Tensor) -> Tensor:
        """Turn products (..., Hkv, H / Hkv, T, S) into weights, zero where hidden."""
        scores = scores * self.scale
        if self.cap is not None:
            scores = self.cap * torch.tanh(scores / self.cap)
        shape = scores.shape
        flat = scores.masked_fill(hidden, -torch.inf).flatten(-4, -3)  # (..., H, T, S)
        return softmax_with_sinks(flat, self.sinks).view(shape)


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
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Causal attention of q (N, H, D) over each row's own request; returns (N, H, D)."""
        rule = _Rule(scale=scale, window=window, cap=cap, sinks=sinks)
        out = torch.empty_like(q)
        num_decodes = layout.num_decodes
        if num_decodes:
            out[:num_decodes] = _decode(q[:num_decodes], keys, values, layout, rule=rule)
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
                rule=rule,
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


def _chunk(q: Tensor, k: Tensor, v: Tensor, *, rule: _Rule) -> Tensor:
    """Attend from the T last of S tokens: q (T, H, D), k and v (S, Hkv, D) -> (T, H, D)."""
    num_new, num_keys = len(q), len(k)
    position = torch.arange(num_keys - num_new, num_keys, device=q.device)[:, None]
    key = torch.arange(num_keys, device=q.device)
    visible = key <= position  # (T, S)
    if rule.window is not None:
        visible &= key > position - rule.window
    if rule.cap is not None or rule.sinks is not None:
        return _capped_chunk(q, k, v, visible, rule=rule)
    out = functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        attn_mask=visible,
        scale=rule.scale,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1)


def _capped_chunk(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, *, rule: _Rule) -> Tensor:
    """Do the same with a soft cap or sinks, which torch's own attention has not."""
    (num_new, num_heads, head_dim), num_kv_heads = q.shape, k.shape[1]
    grouped = q.view(num_new, num_kv_heads, num_heads // num_kv_heads, head_dim)
    scores = torch.einsum("tkgd,skd->kgts", grouped, k).float()
    weights = rule.weigh(scores, hidden=~visible).to(q.dtype)
    return torch.einsum("kgts,skd->tkgd", weights, v).reshape(num_new, num_heads, head_dim)


def _decode(q: Tensor, keys: Tensor, values: Tensor, layout: BatchLayout, *, rule: _Rule) -> Tensor:
    """Attend from one new token of each of B requests: q (B, H, D) -> (B, H, D)."""
    (num_rows, num_heads, head_dim), num_kv_heads = q.shape, keys.shape[2]
    blocks, visible = _visible_blocks(layout, keys.shape[1], num_rows=num_rows, window=rule.window)

    def gather(cache: Tensor) -> Tensor:
        tokens = cache[blocks].flatten(1, 2)  # (B, S, Hkv, D)
        return tokens.transpose(1, 2).to(q.dtype, memory_format=torch.contiguous_format)

    # What lies behind a request's last token is some other request's past: it may be anything,
    # and a weight of zero would not hide a value that is not a number.
    hidden = ~visible[:, None]  # (B, 1, S)
    v = gather(values).masked_fill(hidden[..., None], 0.0)
    grouped = q.view(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)
    # Scores of half precision would lose more than the products themselves.
    scores = (grouped.float() @ gather(keys).float().mT)[..., None, :]  # (B, Hkv, H / Hkv, 1, S)
    weights = rule.weigh(scores, hidden=hidden[:, None, None])[..., 0, :]
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
