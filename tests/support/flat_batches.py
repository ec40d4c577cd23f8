"""The passes of a few requests as an executor is given them, with the scheduler's part played."""

from __future__ import annotations

from cache.manager import KVCacheManager, Region
from model.executors.executor import FlatBatch, PassLimits

LIMITS = PassLimits(
    max_num_seqs=4, max_num_batched_tokens=64, max_model_len=96, num_blocks=30, block_size=16
)


class FlatRequests:
    """Requests by name, which grow by the tokens they are given."""

    def __init__(self, limits: PassLimits = LIMITS) -> None:
        self.manager = KVCacheManager(
            num_blocks=limits.num_blocks, block_size=limits.block_size, prefix_caching=False
        )
        self.regions: dict[str, Region] = {}
        self.lengths: dict[str, int] = {}

    def batch(self, **new_tokens: list[int]) -> FlatBatch:
        """The pass that gives each named request its next tokens; single ones come first."""
        starts, ids = [], []
        for name, tokens in new_tokens.items():
            start = self.lengths.get(name, 0)
            self._grow(name, start + len(tokens))
            starts.append(start)
            ids += tokens
        lengths = tuple(map(len, new_tokens.values()))
        rows = [sum(lengths[: index + 1]) - 1 for index in range(len(lengths))]
        return FlatBatch(ids, starts, lengths, [self.regions[name] for name in new_tokens], rows)

    def _grow(self, name: str, length: int) -> None:
        region = self.regions.get(name)
        if region is None:
            region = self.manager.allocate([0] * length, num_tokens=length, use_prefix=False)
        elif region.capacity < length:
            assert self.manager.extend(region, length)
        assert region is not None
        self.regions[name], self.lengths[name] = region, length
