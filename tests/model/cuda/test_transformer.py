"""The GPU's twin of the Transformer, interpreted: every family, against the readable one."""

from __future__ import annotations

import copy

import pytest
import torch
from checkpoints import RANDOM_CONFIGS, random_model
from cuda_on_cpu import cuda_executor
from flat_batches import FlatRequests
from hf_reference import ours_from
from torch import Tensor

from model.transformer import Transformer

FAMILIES = [name for name in RANDOM_CONFIGS if "rope" not in name or name.endswith("yarn")]


@torch.inference_mode()
def expected(model: Transformer, tokens: list[int]) -> Tensor:
    return model(torch.tensor(tokens), torch.arange(len(tokens))).log_softmax(-1)


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_the_readable_model(name):
    """A prompt, a chunk beside a decoding request, and what follows, all to float32 rounding."""
    model = ours_from(random_model(RANDOM_CONFIGS[name]))
    executor, requests = cuda_executor(copy.deepcopy(model)), FlatRequests()
    tokens = {"a": [], "b": []}
    for step in ({"a": 21}, {"a": 1, "b": 18}, {"a": 1, "b": 1}):
        new = {
            name: [(7 * len(tokens[name]) + 31 * i) % 250 for i in range(count)]
            for name, count in step.items()
        }
        batch = requests.batch(**new)
        executor.prepare(batch)
        logits = executor.submit(batch).result().logits
        for row, (request, ids) in enumerate(new.items()):
            tokens[request] += ids
            wanted = expected(model, tokens[request])[-1]
            torch.testing.assert_close(logits[row].log_softmax(-1), wanted, rtol=1e-4, atol=1e-4)


def test_fused_weights_are_kept_once():
    """The readable model goes on, with views of the fused matrices."""
    model = ours_from(random_model(RANDOM_CONFIGS["rand-qwen2"]))
    wanted = expected(model, [1, 2, 3])
    before = sum(weight.numel() for _, weight in model.named_weights())
    cuda_executor(model)
    storages = {weight.untyped_storage().data_ptr(): weight.untyped_storage().nbytes()
                for _, weight in model.named_weights()}  # fmt: skip
    assert sum(storages.values()) == 4 * before
    torch.testing.assert_close(expected(model, [1, 2, 3]), wanted)
