"""LaunchTable: the constants of each kernel's launch, by kind of card, head size and dtype.

Fixed rather than tuned at start: a row's bits follow from its tiles, and tuning takes seconds. What
compiling shows of them (registers, stack, shared memory) is asserted by .ci/check-cuda-kernels;
their speed was not measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

SPLIT_TOKENS = 512
"""Keys that one program of the decode kernel reads; a row's splits begin at multiples of it."""
LARGE_HEAD = 128
"""Heads beyond this size get smaller tiles."""
WARP_GROUPS = range(90, 120)
"""Capabilities of the cards that multiply with groups of four warps, for which more rows pay."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How one attention kernel is launched."""

    rows: int
    """Rows of queries in a program; the product of matrices wants at least 16."""
    tile: int
    """Keys read at a time."""
    warps: int
    stages: int
    """Tiles under way at the same time."""


def decode_launch(*, head_dim: int, group: int, dtype: torch.dtype) -> Launch:
    """The decode kernel's: a program has one row for each query head of a group."""
    if dtype == torch.float32:
        tile = 16 if head_dim >= LARGE_HEAD else 32
    else:
        tile = 32 if head_dim > LARGE_HEAD else 64
    return Launch(rows=max(16, _power_of_two(group)), tile=tile, warps=4, stages=2)


def prompt_launch(*, head_dim: int, group: int, dtype: torch.dtype, capability: int) -> Launch:
    """The prompt kernel's: `capability` is 80 for compute capability 8.0."""
    least = _power_of_two(group)
    if dtype == torch.float32:
        return Launch(rows=max(16, least), tile=16, warps=4, stages=1)
    if head_dim > LARGE_HEAD:
        return Launch(rows=max(64, least), tile=32, warps=8, stages=2)
    if capability in WARP_GROUPS:
        return Launch(rows=max(128, least), tile=64, warps=8, stages=2)
    return Launch(rows=max(64, least), tile=32 if head_dim == LARGE_HEAD else 64, warps=4, stages=2)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
