"""How many tokens of a prompt a step takes while others decode."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from model.cost import ForwardCost
from server.engine.planning.pace import Pace

COST = ForwardCost(
    layer_parameters=4800,
    output_parameters=0,
    weights_bytes=1000,
    cache_bytes_per_token=10,
    attention_width=4,
    windows=(None, 16, None),
)


def test_a_step_with_prompts_takes_at_most_so_many_times_its_decodes() -> None:
    """Room and decodes together cost as much as the stretch allows, whoever decodes."""
    pace = Pace(max_stretch=3.0, step_tokens=6.0, context_tokens=100.0)
    for decodes in ([0], [50, 400], list(range(32))):
        alone = pace.step_tokens + sum(map(pace.cost, decodes))
        together = alone + pace.room(sum(map(pace.cost, decodes)))
        assert together == pytest.approx(3.0 * alone)


def test_nobody_waits_where_nobody_decodes() -> None:
    """Without decodes prompts are not held back."""
    assert Pace().room(0.0) == math.inf


def test_a_token_costs_more_the_more_it_sees() -> None:
    """Attention adds to a token's cost in proportion to what is before it."""
    pace = Pace(context_tokens=100.0)
    assert [pace.cost(position) for position in (0, 100, 250)] == [1.0, 2.0, 3.5]
    assert Pace().cost(10**6) == 1.0


def test_a_model_s_shape_says_what_a_context_costs() -> None:
    """Only layers that see everything count, at twice the price of other operations."""
    pace = Pace.of(COST, path="native")
    position = int(pace.context_tokens)
    products = 2 * COST.layer_parameters
    attention = 2 * (4 * COST.attention_width * position)
    assert 2 * attention == products
    assert Pace.of(replace(COST, windows=(16,)), path="native").cost(10**6) == 1.0


def test_what_reads_weights_faster_than_it_computes_takes_more_at_once() -> None:
    """A step has the fewest free tokens on the CPU's own kernels, the most on a GPU."""
    native, torch, cuda = (Pace.of(COST, path=path) for path in ("native", "torch", "cuda"))
    assert native.room(1.0) < torch.room(1.0) < cuda.room(1.0)
