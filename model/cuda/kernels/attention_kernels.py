"""The Triton kernels of attention over the paged cache.

Everything here is compiled: tensors come as pointers, upper-case names are constants of a compiled
variant. A row is computed in an order fixed by its own length alone: splits and tiles of fixed
size, merged from the first to the last, so that nobody else's length moves a bit of it.

Layouts, all contiguous: q and out (rows, H, D); keys and values (blocks, PAGE, KV_HEADS, D);
partials (B, H, splits, D) and their logarithmic weights (B, H, splits), float32. GROUP query heads
share a key/value head. D_ROOM is D rounded up to a power of two.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
NOTHING: tl.constexpr = tl.constexpr(-1.0e30)
"""A score below every real one, from which differences are finite."""


@triton.jit
def _product(a, b, IEEE: tl.constexpr):
    # Float32 operands would lose 13 of their bits in TF32.
    return tl.dot(a, b, input_precision="ieee") if IEEE else tl.dot(a, b)


@triton.jit
def _key_offsets(
    table, row, positions, seen, head,
    KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Where the keys at these positions of a request lie in the pool."""
    block = tl.load(table + row + positions // PAGE, mask=seen, other=0).to(tl.int64)
    return (block * PAGE + positions % PAGE) * (KV_HEADS * D) + head * D


@triton.jit
def decode_split(
    q, keys, values, table, lengths, partials, weights, scale, table_row, num_splits,
    WINDOW: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, KV_HEADS: tl.constexpr,
    D: tl.constexpr, D_ROOM: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
    SPLIT: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """Attend from one token of request b to split s of its keys; ROWS pads GROUP for the product.

    Grid (B, KV_HEADS, splits). A split without a key to see writes the weight minus infinity.
    """
    b, head, s = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + b).to(tl.int32)
    start = s * SPLIT
    stop = tl.minimum(start + SPLIT, length)
    first = tl.maximum(length - WINDOW, 0) if WINDOW > 0 else 0
    member, d = tl.arange(0, ROWS), tl.arange(0, D_ROOM)
    live = member < GROUP
    row = b * (KV_HEADS * GROUP) + head * GROUP + member  # of (B, H)
    if (start >= length) | (stop <= first):
        tl.store(weights + row * num_splits + s, tl.full([ROWS], float("-inf"), tl.float32),
                 mask=live)  # fmt: skip
        return
    inside = live[:, None] & (d < D)[None, :]
    queries = tl.load(q + row[:, None] * D + d[None, :], mask=inside, other=0.0)
    top = tl.full([ROWS], NOTHING, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mean = tl.zeros([ROWS, D_ROOM], tl.float32)
    for tile in range(tl.maximum(start, first // TILE * TILE), stop, TILE):
        positions = tile + tl.arange(0, TILE)
        seen = (positions < stop) & (positions >= first)
        at = _key_offsets(table, b * table_row, positions, seen, head, KV_HEADS, D, PAGE)
        there = seen[:, None] & (d < D)[None, :]
        k = tl.load(keys + at[:, None] + d[None, :], mask=there, other=0.0)
        scores = _product(queries, tl.trans(k), IEEE) * (scale * LOG2_E)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        p, keep = tl.exp2(scores - higher[:, None]), tl.exp2(top - higher)
        v = tl.load(values + at[:, None] + d[None, :], mask=there, other=0.0)
        mean = mean * keep[:, None] + _product(p.to(v.dtype), v, IEEE)
        total = total * keep + tl.sum(p, 1)
        top = higher
    place = (row * num_splits + s).to(tl.int64)
    tl.store(partials + place[:, None] * D + d[None, :], mean / total[:, None], mask=inside)
    tl.store(weights + place, top + tl.log2(total), mask=live)


@triton.jit
def decode_merge(
    partials, weights, lengths, out, num_splits,
    D: tl.constexpr, D_ROOM: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Join the splits of one row and head, in order. Grid (B, H)."""
    b, row = tl.program_id(0), tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    d = tl.arange(0, D_ROOM)
    length = tl.load(lengths + b).to(tl.int32)
    top = tl.full([], NOTHING, tl.float32)
    total = tl.full([], 0.0, tl.float32)
    mean = tl.zeros([D_ROOM], tl.float32)
    for s in range(tl.cdiv(length, SPLIT)):
        place = (row * num_splits + s).to(tl.int64)
        weight = tl.load(weights + place)
        if weight > float("-inf"):
            higher = tl.maximum(top, weight)
            keep, new = tl.exp2(top - higher), tl.exp2(weight - higher)
            part = tl.load(partials + place * D + d, mask=d < D, other=0.0)
            mean = mean * keep + new * part
            total = total * keep + new
            top = higher
    joined = mean / tl.where(total > 0.0, total, 1.0)
    tl.store(out + row.to(tl.int64) * D + d, joined.to(out.dtype.element_ty), mask=d < D)


@triton.jit
def attend_prompt(
    q, keys, values, table, lengths, starts, tiles, out, scale, table_row,
    WINDOW: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, KV_HEADS: tl.constexpr,
    D: tl.constexpr, D_ROOM: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
    IEEE: tl.constexpr,
):  # fmt: skip
    """Attend from ROWS pairs of a new token and a head of one group, all of one request.

    Grid (tiles, KV_HEADS). `tiles` (T, 2) names the request and which of its tiles of new tokens;
    what was cached before, be it a shared beginning or an earlier chunk, is read like the rest.
    """
    i, head = tl.program_id(0), tl.program_id(1)
    b, tile = tl.load(tiles + 2 * i).to(tl.int32), tl.load(tiles + 2 * i + 1).to(tl.int32)
    first_row = tl.load(starts + b).to(tl.int32)
    num_new = tl.load(starts + b + 1).to(tl.int32) - first_row
    length = tl.load(lengths + b).to(tl.int32)
    before = length - num_new
    TOKENS: tl.constexpr = ROWS // GROUP
    pair, d = tl.arange(0, ROWS), tl.arange(0, D_ROOM)
    token = tile * TOKENS + pair // GROUP
    live = (token < num_new) & (pair < TOKENS * GROUP)
    position = before + token
    row = (first_row + token) * (KV_HEADS * GROUP) + head * GROUP + pair % GROUP
    row = row.to(tl.int64)
    inside = live[:, None] & (d < D)[None, :]
    queries = tl.load(q + row[:, None] * D + d[None, :], mask=inside, other=0.0)
    top = tl.full([ROWS], NOTHING, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mean = tl.zeros([ROWS, D_ROOM], tl.float32)
    stop = before + tl.minimum((tile + 1) * TOKENS, num_new)
    start = 0
    if WINDOW > 0:
        start = tl.maximum(before + tile * TOKENS - WINDOW + 1, 0) // TILE * TILE
    for at_tile in range(start, stop, TILE):
        positions = at_tile + tl.arange(0, TILE)
        there = positions < stop
        at = _key_offsets(table, b * table_row, positions, there, head, KV_HEADS, D, PAGE)
        loaded = there[:, None] & (d < D)[None, :]
        k = tl.load(keys + at[:, None] + d[None, :], mask=loaded, other=0.0)
        seen = (positions[None, :] <= position[:, None]) & there[None, :]
        if WINDOW > 0:
            seen = seen & (positions[None, :] > position[:, None] - WINDOW)
        scores = _product(queries, tl.trans(k), IEEE) * (scale * LOG2_E)
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        p, keep = tl.exp2(scores - higher[:, None]), tl.exp2(top - higher)
        v = tl.load(values + at[:, None] + d[None, :], mask=loaded, other=0.0)
        mean = mean * keep[:, None] + _product(p.to(v.dtype), v, IEEE)
        total = total * keep + tl.sum(p, 1)
        top = higher
    joined = mean / tl.where(total > 0.0, total, 1.0)[:, None]
    tl.store(out + row[:, None] * D + d[None, :], joined.to(out.dtype.element_ty), mask=inside)
