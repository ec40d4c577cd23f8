"""On a GPU the cache gets what the weights and the largest passes leave."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from server.config import EngineConfig
from server.engine.planning import memory_plan
from server.engine.planning.memory_plan import plan_memory
from server.errors import ConfigurationError

FREE, PEAK = 1_000_000, 120_000
TOKEN_BYTES = 2 * 2 * 1 * 8 * 4


class Factory:
    """Notes the limits it is asked to measure."""

    cache_dtype = torch.float32

    def measure_peak(self, limits) -> int:
        self.limits = limits
        return PEAK


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A model on a card with little memory."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (FREE, 2 * FREE))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    config = SimpleNamespace(num_layers=2, num_kv_heads=1, head_dim=8, max_position_embeddings=4096)
    return SimpleNamespace(
        config=config, device=torch.device("cuda", 0), dtype=torch.float32, num_bytes=5
    )


def test_the_cache_takes_what_is_left(loaded):
    """Of the free memory a small part stays free, and what the passes took is theirs."""
    factory = Factory()
    plan = plan_memory(loaded, factory, EngineConfig())
    left = FREE * memory_plan.GPU_SHARE - PEAK
    assert plan.cache.num_blocks == left // (16 * TOKEN_BYTES)
    assert plan.limits.num_blocks == plan.cache.num_blocks + 1
    assert factory.limits.num_blocks == 2


def test_defaults_are_a_gpus_unless_told_otherwise(loaded):
    """256 requests and 8192 tokens; what is given stays."""
    limits = plan_memory(loaded, Factory(), EngineConfig()).limits
    assert (limits.max_num_seqs, limits.max_num_batched_tokens) == (256, 8192)
    limits = plan_memory(loaded, Factory(), EngineConfig(max_num_seqs=32)).limits
    assert (limits.max_num_seqs, limits.max_num_batched_tokens) == (32, 8192)
    loaded.device = torch.device("cpu")
    limits = plan_memory(loaded, Factory(), EngineConfig()).limits
    assert (limits.max_num_seqs, limits.max_num_batched_tokens) == (32, 512)


def test_more_than_is_left_is_refused(loaded):
    """The message says how much there is and what to change."""
    config = EngineConfig(kv_cache_memory=FREE)
    with pytest.raises(ConfigurationError, match=r"--kv-cache-memory is .* 781.2 KiB left: use"):
        plan_memory(loaded, Factory(), config)
