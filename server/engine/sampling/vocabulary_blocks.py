"""Rows over the vocabulary, taken in blocks: maxima, likeliest tokens and sums, without a sort.

Whole rows are only passed over; what needs more looks at a few blocks.
Each result depends on its own row alone, bitwise. Pure functions, for any device.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 256
"""Entries in a block; fixed, because it is part of the order in which sums are taken."""

# Neighbours of which only the largest is looked at first; a divisor of BLOCK.
_GROUP = 32


def as_blocks(logits: Tensor) -> Tensor:
    """View (R, V) as (R, blocks, BLOCK), padded with impossible tokens where V does not divide."""
    missing = -logits.shape[1] % BLOCK
    if missing:
        logits = torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
    return logits.reshape(len(logits), -1, BLOCK)


def largest_id(blocks: Tensor, block_maxima: Tensor) -> Tensor:
    """Return the id (R,) of each row's largest logit, the lowest among equals."""
    best = block_maxima.argmax(-1)
    rows = torch.arange(len(blocks), device=blocks.device)
    return best * BLOCK + blocks[rows, best].argmax(-1)


def largest_ids(logits: Tensor, count: int) -> Tensor:
    """Return the ids (R, count) of each row's largest logits (R, V), ties by lower id.

    The `count` first entries lie in the `count` blocks whose maxima come first in the same order,
    so only those blocks are sorted.
    """
    count = min(count, logits.shape[1])
    if count == 0:
        return torch.empty(len(logits), 0, dtype=torch.int64, device=logits.device)
    blocks = as_blocks(logits)
    offsets = torch.arange(max(BLOCK, blocks.shape[1]), device=logits.device)
    keys = _ordering_keys(blocks.amax(-1), offsets[: blocks.shape[1]])
    best = keys.topk(min(count, blocks.shape[1])).indices.unsqueeze(2)
    values = blocks.gather(1, best.expand(-1, -1, BLOCK)).flatten(1)
    ids = (best * BLOCK + offsets[:BLOCK]).flatten(1)
    return ids.gather(1, _ordering_keys(values, ids).topk(count).indices)


def largest_values(values: Tensor, count: int) -> Tensor:
    """Return the `count` largest of each row (R, blocks * BLOCK), in order, fewer if V is less.

    They lie in the `count` groups of neighbours with the largest maxima.
    """
    if count * _GROUP >= values.shape[1]:
        return values.topk(min(count, values.shape[1])).values
    groups = values.view(len(values), -1, _GROUP)
    best = groups.amax(-1).topk(count, sorted=False).indices.unsqueeze(2)
    return groups.gather(1, best.expand(-1, -1, _GROUP)).flatten(1).topk(count).values


def inverse_cdf(probs: Tensor, numbers: Tensor) -> Tensor:
    """Return the ids (R,) where the sums of `probs`, in order of id, pass `numbers`.

    An entry of probability 0 is never returned.

    Args:
        probs: (R, blocks * BLOCK) float32, not negative, not all zero; need not add up to 1.
        numbers: (R, 1) float64 in [0, 1).
    """
    rows = torch.arange(len(probs), device=probs.device)
    sums = cumulated_blocks(probs)
    targets = numbers * sums[:, -1:]
    block = _passed(sums, targets)
    before = torch.where(block > 0, sums.gather(1, (block - 1).clamp(min=0)), 0.0)
    block = block.squeeze(1)
    inside = probs.view(len(probs), -1, BLOCK)[rows, block].cumsum(-1, dtype=torch.float64)
    return block * BLOCK + _passed(inside, targets - before).squeeze(1)


def cumulated_blocks(probs: Tensor) -> Tensor:
    """Return the sum of each row up to and with each block, (R, blocks) float64."""
    return probs.view(len(probs), -1, BLOCK).sum(-1).cumsum(-1, dtype=torch.float64)


def _ordering_keys(values: Tensor, ids: Tensor) -> Tensor:
    """Distinct integers that order (value, lower id first) pairs; -0 equals 0."""
    bits = (values + 0.0).view(torch.int32)
    # Negative floats order backwards by their bits: flip all but the sign.
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.long() << 32) - ids


def _passed(sums: Tensor, targets: Tensor) -> Tensor:
    """The first index (R, 1) whose sum exceeds the target, but never one that added nothing.

    Rounding may put a target at the very end; the last entry that added something is taken then.
    """
    first = (sums <= targets).sum(-1, keepdim=True)
    return first.minimum((sums < sums[:, -1:]).sum(-1, keepdim=True))
