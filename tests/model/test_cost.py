"""Costs are counted as a person would count them, and agree with torch's own counter."""

from __future__ import annotations

from dataclasses import replace

import checkpoints
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from model.cost import ForwardCost
from model.formats.loader import load_model

COST = ForwardCost(
    layer_parameters=1000,
    output_parameters=200,
    weights_bytes=4800,
    cache_bytes_per_token=64,
    attention_width=8,
    windows=(None, None),
)


@pytest.mark.parametrize("name", sorted(checkpoints.RANDOM_CONFIGS))
def test_parameters_are_those_of_the_model(checkpoint, name):
    """The matrices counted from the configuration are the matrices of the model."""
    loaded = load_model(checkpoint(name))
    cost = ForwardCost.of(loaded.config, weights_bytes=1, cache_bytes_per_token=1)
    matrices = {
        name: parameter.numel()
        for name, parameter in loaded.model.named_parameters()
        if parameter.ndim == 2 and ".layers." in name
    }
    assert cost.layer_parameters == sum(matrices.values())
    assert cost.output_parameters == loaded.config.vocab_size * loaded.config.hidden_size


def test_flops_equal_the_count_of_torch(checkpoint):
    """A whole pass with one row of logits costs what torch counts, its masked products included."""
    loaded = load_model(checkpoint("rand-llama-untied"))
    cost = ForwardCost.of(loaded.config, weights_bytes=1, cache_bytes_per_token=1)
    length = 20
    with FlopCounterMode(display=False) as counter:
        loaded.model(torch.arange(length), torch.arange(length), rows=torch.tensor([length - 1]))
    hidden_pairs = length * (length - 1) // 2  # computed by the reference, then masked
    masked = 4 * cost.attention_width * hidden_pairs * len(cost.windows)
    assert cost.flops(start=0, stop=length) == counter.get_total_flops() - masked


def test_a_decode_step_is_one_row():
    """With nine tokens in the cache, the tenth costs each matrix once and ten keys a layer."""
    assert COST.flops(start=9, stop=10) == 2 * (1000 + 200) + 4 * 8 * 10 * 2
    assert COST.bytes_moved(start=9, stop=10) == 4800 + 64 + 10 * 64


@pytest.mark.parametrize(("start", "stop"), [(0, 3), (0, 20), (4, 9), (7, 8), (3, 30), (15, 16)])
def test_windows_hide_keys(start, stop):
    """A layer with a window sees, query by query, the window's keys at most."""
    narrow = replace(COST, windows=(5,))
    seen = sum(min(position + 1, 5) for position in range(start, stop))
    products = 2 * (1000 * (stop - start) + 200)
    assert narrow.flops(start=start, stop=stop) == products + 4 * 8 * seen
    read = len({key for q in range(start, stop) for key in range(max(0, q - 4), q + 1)})
    assert narrow.bytes_moved(start=start, stop=stop) == 4800 + 64 * (stop - start) + 64 * read


def test_passes_add_up():
    """Attention pairs of a prompt in two chunks are those of the prompt in one."""
    whole = COST.flops(start=0, stop=20)
    parts = COST.flops(start=0, stop=7) + COST.flops(start=7, stop=20)
    assert parts - whole == 2 * COST.output_parameters
