"""The passes that memory is planned by are the largest there can be."""

from __future__ import annotations

import pytest
import torch
from checkpoints import RANDOM_CONFIGS, random_model
from hf_reference import ours_from

from model.executors.executor import PassLimits
from model.executors.memory_profile import largest_batches, profile_passes
from model.executors.torch_executor import TorchExecutor


@pytest.mark.parametrize(("length", "prompts"), [(30, (20, 30)), (100, (50,))])
def test_the_largest_passes(length, prompts):
    """One has as many prompt tokens as a step may have, the other as many requests as may run."""
    limits = PassLimits(
        max_num_seqs=5, max_num_batched_tokens=50, max_model_len=length, num_blocks=2, block_size=16
    )
    first, second = largest_batches(limits)
    assert first.query_lengths == prompts
    assert second.query_lengths == (1,) * 5
    assert set(second.starts) == {length - 1}
    assert {len(region.block_ids) for region in second.regions} == {limits.max_blocks}


def test_both_passes_run_and_the_peak_is_what_came_on_top(monkeypatch):
    """What was allocated before does not count; the decode pass counts again, for its graphs."""
    limits = PassLimits(
        max_num_seqs=3, max_num_batched_tokens=20, max_model_len=64, num_blocks=2, block_size=16
    )
    model = ours_from(random_model(RANDOM_CONFIGS["rand-llama-tied"]))
    cpu = torch.device("cpu")
    executor = TorchExecutor(model, limits=limits, dtype=torch.float32, device=cpu)
    for name, answer in {
        "reset_peak_memory_stats": None, "memory_allocated": 1000,
        "max_memory_allocated": 1700, "synchronize": None,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda _device, answer=answer: answer)
    assert profile_passes(executor, limits) == 700 + 700
