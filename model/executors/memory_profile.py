"""profile_passes: how much memory of a device the largest passes take, found by running them.

What they compute is nonsense: all requests share the blocks of a pool that has hardly any.
"""

from __future__ import annotations

import torch

from cache.manager import Region
from model.executors.executor import Executor, FlatBatch, PassLimits


def profile_passes(executor: Executor, limits: PassLimits) -> int:
    """Run the pass with most prompt tokens and the one with most requests.

    Args:
        executor: On a CUDA device, with a pool of a few blocks.
        limits: The largest pass.

    Returns:
        Bytes that all passes may have allocated at the same time, beyond what was before.
    """
    before = torch.cuda.memory_allocated(executor.device)
    peaks = []
    for batch in largest_batches(limits):
        torch.cuda.reset_peak_memory_stats(executor.device)
        executor.prepare(batch)
        executor.submit(batch).result()
        torch.cuda.synchronize(executor.device)
        peaks.append(torch.cuda.max_memory_allocated(executor.device) - before)
    return max(peaks) + peaks[-1]  # captured decode passes have memory of their own


def largest_batches(limits: PassLimits) -> tuple[FlatBatch, FlatBatch]:
    """The pass of as many prompt tokens as there may be, and that of all requests decoding."""
    longest = min(limits.max_model_len, limits.max_num_batched_tokens)
    lengths: list[int] = []
    left = limits.max_num_batched_tokens
    while left > 0 and len(lengths) < limits.max_num_seqs:
        lengths.append(min(longest, left))
        left -= lengths[-1]
    lengths.sort()  # a single token, if one is left over, comes first
    prompts = _batch([0] * len(lengths), tuple(lengths), limits)
    count = min(limits.max_num_seqs, limits.max_num_batched_tokens)
    return prompts, _batch([limits.max_model_len - 1] * count, (1,) * count, limits)


def _batch(starts: list[int], lengths: tuple[int, ...], limits: PassLimits) -> FlatBatch:
    """A pass whose requests all live in block 1."""
    regions = [
        Region(
            block_ids=[1] * -(-(start + length) // limits.block_size),
            block_size=limits.block_size,
            num_cached_tokens=0,
            digest=b"",
            num_committed_blocks=0,
        )
        for start, length in zip(starts, lengths, strict=True)
    ]
    rows = [sum(lengths[: index + 1]) - 1 for index in range(len(lengths))]
    return FlatBatch([0] * sum(lengths), starts, lengths, regions, rows)
