"""The table of costs against torch's own counter of operations."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from model.attention import scaled_dot_product_attention
from model.attention_forms.form_cost import FORMS, FormSizes, cost_table
from model.attention_forms.linear import LinearState
from model.attention_forms.low_rank import low_rank_attention

SIZES = FormSizes(tokens=100, head_dim=16, window=24, sinks=4, random=12, rank=10, hidden=8)
COSTS = {cost.form: cost for cost in FORMS}


def counted(run) -> int:
    """Operations of the matrix products in a call, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("form", "keys"),
    [
        ("full, with a cache", 100),
        ("local window", 24),
        ("window and sinks", 28),
        ("global, window and random", 40),
    ],
)
def test_a_query_costs_what_torch_counts(form: str, keys: int):
    """One query over the keys that a form shows takes the operations of the table."""
    q, k, v = torch.randn(1, 16), torch.randn(keys, 16), torch.randn(keys, 16)
    operations = counted(lambda: scaled_dot_product_attention(q, k, v))
    assert COSTS[form].operations(SIZES) == operations
    if form != "global, window and random":  # which keeps what later tokens may draw
        assert COSTS[form].numbers(SIZES) == k.numel() + v.numel()


def test_recomputing_costs_the_square():
    """All queries over all keys, for one new token."""
    q, k, v = torch.randn(3, 100, 16).unbind()
    operations = counted(lambda: scaled_dot_product_attention(q, k, v, causal=True))
    assert COSTS["recomputing everything"].operations(SIZES) == operations
    assert COSTS["recomputing everything"].numbers(SIZES) == 0


def test_a_low_rank_query_costs_its_rank():
    """What is projected once is left out: one more query sees R keys."""
    k, v, projection = torch.randn(100, 16), torch.randn(100, 16), torch.randn(10, 100)

    def run(num_queries: int) -> int:
        q = torch.randn(num_queries, 16)
        return counted(
            lambda: low_rank_attention(
                q, k, v, key_projection=projection, value_projection=projection
            )
        )

    assert COSTS["low-rank (encoders)"].operations(SIZES) == run(2) - run(1)


def test_a_linear_state_costs_the_same_at_any_length():
    """The step's products and the state's numbers are those of the table, after 1 token and 50.

    Torch counts the query's product, and not that of the key with the value, which is as large.
    """
    state = LinearState.empty(1, features=16, value_size=16)
    q, k, v = torch.rand(3, 1, 16).unbind()
    cost = COSTS["linear, as a recurrence"]
    for _ in range(50):
        assert cost.operations(SIZES) == 2 * counted(lambda: state.step(q, k, v))
        assert 4 * cost.numbers(SIZES) == state.num_bytes


@pytest.mark.parametrize("cost", FORMS, ids=lambda cost: cost.form)
def test_growth_is_what_the_table_says(cost):
    """From 10,000 tokens to twice as many, costs grow as the formula does, and memory too."""

    def grown(count) -> float:
        before, after = count(FormSizes(tokens=10_000)), count(FormSizes(tokens=20_000))
        return after / before if before else 1.0

    powers = {"O(n^2 D)": 4.0, "O(n D)": 2.0, "O(n (A + D))": 2.0}
    assert grown(cost.numbers) == pytest.approx(powers.get(cost.memory, 1.0))
    if cost.form == "strided":  # w + n/w is no power
        assert 1 < grown(cost.operations) < 1.2
    else:
        assert grown(cost.operations) == pytest.approx(powers.get(cost.growth, 1.0))


def test_a_text_shorter_than_the_window_costs_as_full_attention():
    """Nothing is counted that is not there."""
    short = FormSizes(tokens=10)
    for form in ("local window", "window and sinks", "strided", "global, window and random"):
        assert COSTS[form].operations(short) == COSTS["full, with a cache"].operations(short)


def test_the_table_has_a_line_for_every_form():
    """It is Markdown, with as many columns in each line."""
    lines = cost_table(SIZES).splitlines()
    assert len(lines) == 2 + len(FORMS)
    assert {line.count("|") for line in lines} == {6}
