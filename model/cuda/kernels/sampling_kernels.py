"""The Triton kernel that chooses tokens, one row of logits a program.

Everything here is compiled: tensors come as pointers, upper-case names are constants of a compiled
variant. Each sum runs over blocks of fixed size from the first to the last, so that a row's token
depends on nobody else. A logit is seen as its distance below the row's maximum, over temperature:
a float that is never negative, whose bits are ordered as it is. What top_k and top_p keep is found
by narrowing down the largest distance that stays, sixteen guesses to a pass.
"""

from __future__ import annotations

import triton
import triton.language as tl

CHOSEN: tl.constexpr = tl.constexpr(0)
NOT_FINITE: tl.constexpr = tl.constexpr(1)
NOTHING_ALLOWED: tl.constexpr = tl.constexpr(2)
GUESSES: tl.constexpr = tl.constexpr(16)
PASSES: tl.constexpr = tl.constexpr(8)
"""Sixteen guesses narrow 31 bits down to one in eight passes."""
FARTHEST: tl.constexpr = tl.constexpr(0x7F800000)
"""The bits of infinity: no distance is farther."""
ALL: tl.constexpr = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _allowed_logits(logits, allowed, masked, v, V: tl.constexpr):
    """Logits of some tokens; minus infinity beyond the vocabulary and where a mask forbids them."""
    there = v < V
    x = tl.load(logits + v, mask=there, other=float("-inf"))
    if masked != 0:
        words = tl.load(allowed + v // 32, mask=there, other=0)
        x = tl.where(((words >> (v % 32)) & 1) != 0, x, float("-inf"))
    return x


@triton.jit
def _distance_bits(x, top, temperature):
    """Bits of how far below the maximum logits are, over temperature, be that ever so small."""
    return ((top - x) / temperature).to(tl.int32, bitcast=True)


@triton.jit
def _mass(x, top, temperature, kept):
    """Probabilities of what is kept, that of the maximum counting as 1."""
    return tl.where(kept, tl.exp((x - top) / temperature), 0.0)


@triton.jit
def _narrow(
    logits, allowed, masked, top, temperature, least, target,
    V: tl.constexpr, BLOCK: tl.constexpr, COUNTS: tl.constexpr,
):  # fmt: skip
    """The bits of the least distance within which lies a count, or a mass, of `target`.

    `least` is the farthest distance that counts.
    """
    low = tl.full([], 0, tl.int64)
    high = least.to(tl.int64)
    guess = tl.arange(0, GUESSES)
    for _ in range(PASSES):
        step = tl.maximum((high - low + GUESSES) // GUESSES, 1)
        farthest = tl.minimum(low + (guess + 1) * step - 1, high)
        found = tl.zeros([GUESSES], tl.float64)
        for start in range(0, V, BLOCK):
            x = _allowed_logits(logits, allowed, masked, start + tl.arange(0, BLOCK), V)
            bits = _distance_bits(x, top, temperature)
            inside = bits[:, None] <= farthest[None, :]
            there = x > float("-inf")
            one = there.to(tl.float32) if COUNTS else _mass(x, top, temperature, there)
            found += tl.sum(tl.where(inside, one[:, None], 0.0), 0).to(tl.float64)
        enough = tl.where(found >= target, guess, GUESSES - 1)
        best = tl.min(enough, 0)
        low, high = low + best * step, tl.minimum(low + (best + 1) * step - 1, high)
    return high.to(tl.int32)


@triton.jit
def _kept_mass(logits, allowed, masked, top, temperature, least, V: tl.constexpr,
               BLOCK: tl.constexpr):  # fmt: skip
    """The sum of what lies within a distance, the maximum counting as 1."""
    total = tl.full([], 0.0, tl.float64)
    for start in range(0, V, BLOCK):
        x = _allowed_logits(logits, allowed, masked, start + tl.arange(0, BLOCK), V)
        kept = (_distance_bits(x, top, temperature) <= least) & (x > float("-inf"))
        total += tl.sum(_mass(x, top, temperature, kept), 0).to(tl.float64)
    return total


@triton.jit
def _largest(logits, allowed, masked, V: tl.constexpr, BLOCK: tl.constexpr):
    """The largest allowed logit, its lowest id, and what is to become of the row."""
    raw, top = tl.full([], float("-inf"), tl.float32), tl.full([], float("-inf"), tl.float32)
    best, is_nan = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32)
    for start in range(0, V, BLOCK):
        v = start + tl.arange(0, BLOCK)
        unmasked = tl.load(logits + v, mask=v < V, other=float("-inf"))
        # A number that is not one equals nothing, itself included.
        is_nan |= tl.max((unmasked != unmasked).to(tl.int32), 0)  # noqa: PLR0124
        raw = tl.maximum(raw, tl.max(unmasked, 0))
        x = _allowed_logits(logits, allowed, masked, v, V)
        largest = tl.max(x, 0)
        if largest > top:
            top = largest
            best = tl.min(tl.where(x == largest, v, ALL), 0)
    infinite = (raw == float("inf")) | (raw == float("-inf"))
    outcome = tl.where(top == float("-inf"), NOTHING_ALLOWED, CHOSEN)
    return top, best, tl.where((is_nan != 0) | infinite, NOT_FINITE, outcome)


@triton.jit
def _cut(
    logits, allowed, masked, top, temperature, top_k, top_p, min_p,
    V: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The bits of the largest distance that top_k, then top_p, then min_p keep."""
    least = tl.full([], FARTHEST, tl.int32)
    if (top_k > 0) & (top_k < V):
        least = _narrow(
            logits, allowed, masked, top, temperature, least, top_k.to(tl.float64),
            V=V, BLOCK=BLOCK, COUNTS=True,
        )  # fmt: skip
    if top_p < 1.0:
        mass = _kept_mass(logits, allowed, masked, top, temperature, least, V=V, BLOCK=BLOCK)
        least = _narrow(
            logits, allowed, masked, top, temperature, least, top_p * mass,
            V=V, BLOCK=BLOCK, COUNTS=False,
        )  # fmt: skip
    if min_p > 0.0:
        least = tl.minimum(least, (-tl.log(min_p)).to(tl.int32, bitcast=True))
    return least


@triton.jit
def _drawn(
    logits, allowed, masked, top, temperature, least, target, best,
    V: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The first kept token up to which lies more than `target` of the mass."""
    before = tl.full([], 0.0, tl.float64)
    found = tl.full([], 0, tl.int32)
    for start in range(0, V, BLOCK):
        v = start + tl.arange(0, BLOCK)
        x = _allowed_logits(logits, allowed, masked, v, V)
        kept = (_distance_bits(x, top, temperature) <= least) & (x > float("-inf"))
        p = _mass(x, top, temperature, kept)
        sums = before + tl.cumsum(p, 0).to(tl.float64)
        first = tl.min(tl.where(kept & (sums > target), v, ALL), 0)
        last = tl.max(tl.where(kept, v, -1), 0)
        if found == 0:
            if first < ALL:
                best, found = first, 1
            elif last >= 0:  # should rounding leave the target beyond every sum
                best = last
        before += tl.sum(p, 0).to(tl.float64)
    return best


@triton.jit
def choose(
    logits, allowed, has_mask, temperatures, top_ks, top_ps, min_ps, uniforms, chosen, outcomes,
    words, V: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Choose a token in each row (B, V) of float32 logits. Grid (B,).

    A temperature of 0 takes the lowest id of the largest logit. `allowed` (B, words) has bit i of
    word w for token 32 w + i, and counts in rows where `has_mask` is not 0. `uniforms` are float64
    in [0, 1).
    """
    b = tl.program_id(0)
    logits += b.to(tl.int64) * V
    allowed += b.to(tl.int64) * words
    masked = tl.load(has_mask + b)
    top, best, outcome = _largest(logits, allowed, masked, V=V, BLOCK=BLOCK)
    temperature = tl.load(temperatures + b)
    if (temperature > 0.0) & (outcome == CHOSEN):
        least = _cut(
            logits, allowed, masked, top, temperature,
            tl.load(top_ks + b), tl.load(top_ps + b), tl.load(min_ps + b), V=V, BLOCK=BLOCK,
        )  # fmt: skip
        mass = _kept_mass(logits, allowed, masked, top, temperature, least, V=V, BLOCK=BLOCK)
        target = tl.load(uniforms + b) * mass
        best = _drawn(
            logits, allowed, masked, top, temperature, least, target, best, V=V, BLOCK=BLOCK
        )
    tl.store(chosen + b, best)
    tl.store(outcomes + b, outcome)
