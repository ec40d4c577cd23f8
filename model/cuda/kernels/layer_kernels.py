"""The Triton kernels of a layer's small operations, each of which would be several of torch's.

Everything here is compiled: tensors come as pointers, upper-case names are constants of a compiled
variant. Arithmetic is float32, and numbers are rounded to the activations' type where the readable
Transformer rounds them, so that both have the same bits wherever their products do. One row, or one
head of it, is one program: no row's bits depend on another's. C_ROOM is C rounded up to a power of
two, and so on; all matrices are contiguous.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def embed(
    ids, positions, weight, position_weight, out, scale,
    C: tl.constexpr, BLOCK: tl.constexpr, SCALED: tl.constexpr, POSITIONED: tl.constexpr,
):  # fmt: skip
    """Look up a token's row, scaled, with its position's added. Grid (N, C / BLOCK)."""
    t, c = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = c < C
    x = tl.load(weight + tl.load(ids + t).to(tl.int64) * C + c, mask=there, other=0.0)
    if SCALED:
        x = (x.to(tl.float32) * scale).to(out.dtype.element_ty)
    if POSITIONED:
        place = tl.load(positions + t).to(tl.int64)
        added = tl.load(position_weight + place * C + c, mask=there, other=0.0)
        x = (x.to(tl.float32) + added.to(tl.float32)).to(out.dtype.element_ty)
    tl.store(out + t * C + c, x, mask=there)


@triton.jit
def add_norm(
    x, residual, weight, bias, out, eps,
    C: tl.constexpr, C_ROOM: tl.constexpr, ADDS: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    """Add x to the residual in place, and normalise it: RMS, or with CENTRED mean and variance.

    Grid (N,). Without ADDS the residual is only read.
    """
    t, c = tl.program_id(0).to(tl.int64), tl.arange(0, C_ROOM)
    there = c < C
    r = tl.load(residual + t * C + c, mask=there, other=0.0).to(tl.float32)
    if ADDS:
        added = r + tl.load(x + t * C + c, mask=there, other=0.0).to(tl.float32)
        rounded = added.to(residual.dtype.element_ty)
        tl.store(residual + t * C + c, rounded, mask=there)
        r = rounded.to(tl.float32)
    w = tl.load(weight + c, mask=there, other=0.0)
    if CENTRED:
        r = tl.where(there, r - tl.sum(r, 0) / C, 0.0)
    normed = r * tl.rsqrt(tl.sum(r * r, 0) / C + eps) * w
    if CENTRED:
        normed += tl.load(bias + c, mask=there, other=0.0)
    tl.store(out + t * C + c, normed.to(out.dtype.element_ty), mask=there)


@triton.jit
def turn_and_write(
    qkv, positions, slots, cos, sin, q_norm, k_norm, q_out, keys, values, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, HALF_ROOM: tl.constexpr,
    TURNED: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    """Normalise and turn a head by its position; queries go on, keys and values to their slot.

    Grid (N, HEADS + 2 KV_HEADS). A row of qkv is all heads of queries, then of keys, then of
    values. Rotary pairs are (i, i + D/2); cos and sin are (positions, D/2) float32.
    """
    t, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    HALF: tl.constexpr = (D + 1) // 2
    i = tl.arange(0, HALF_ROOM)
    in_first, in_second = i < HALF, i < D - HALF
    source = qkv + (t * (HEADS + 2 * KV_HEADS) + head) * D + i
    first = tl.load(source, mask=in_first, other=0.0)
    second = tl.load(source + HALF, mask=in_second, other=0.0)
    kind = q_out.dtype.element_ty
    if head < HEADS + KV_HEADS:
        if NORMED:
            a, b = first.to(tl.float32), second.to(tl.float32)
            weights = q_norm + i if head < HEADS else k_norm + i
            scale = tl.rsqrt((tl.sum(a * a, 0) + tl.sum(b * b, 0)) / D + eps)
            a = a * scale * tl.load(weights, mask=in_first, other=0.0)
            b = b * scale * tl.load(weights + HALF, mask=in_second, other=0.0)
            first, second = a.to(kind), b.to(kind)
        if TURNED:
            a, b = first.to(tl.float32), second.to(tl.float32)
            angle = tl.load(positions + t).to(tl.int64) * HALF + i
            c = tl.load(cos + angle, mask=in_first, other=0.0)
            s = tl.load(sin + angle, mask=in_first, other=0.0)
            first, second = (a * c - b * s).to(kind), (b * c + a * s).to(kind)
    if head < HEADS:
        target = q_out + (t * HEADS + head) * D + i
        tl.store(target, first, mask=in_first)
        tl.store(target + HALF, second, mask=in_second)
    else:
        slot = tl.load(slots + t).to(tl.int64) * KV_HEADS
        if head < HEADS + KV_HEADS:
            target = keys + (slot + head - HEADS) * D + i
        else:
            target = values + (slot + head - HEADS - KV_HEADS) * D + i
        stored = keys.dtype.element_ty
        tl.store(target, first.to(stored), mask=in_first)
        tl.store(target + HALF, second.to(stored), mask=in_second)


@triton.jit
def activate(
    x, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Apply an activation; with GATED to the first half of a row, times the second.

    Grid (N, WIDTH / BLOCK), WIDTH being that of `out`. KIND is silu, gelu or gelu_tanh.
    """
    t, c = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = c < WIDTH
    row = x + t * (2 * WIDTH if GATED else WIDTH)
    g = tl.load(row + c, mask=there, other=0.0).to(tl.float32)
    if KIND == "silu":
        y = g * tl.sigmoid(g)
    elif KIND == "gelu":
        y = 0.5 * g * (1.0 + tl.erf(g * 0.7071067811865476))
    else:
        inner = 0.7978845608028654 * (g + 0.044715 * g * g * g)
        y = g * tl.sigmoid(2.0 * inner)
    if GATED:
        up = tl.load(row + WIDTH + c, mask=there, other=0.0).to(tl.float32)
        y = y.to(out.dtype.element_ty).to(tl.float32) * up
    tl.store(out + t * WIDTH + c, y.to(out.dtype.element_ty), mask=there)
