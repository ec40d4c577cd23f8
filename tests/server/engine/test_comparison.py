"""A comparison's arithmetic, on steps whose times follow known polynomials."""

import json

import numpy as np
import pytest

from model.cost import ForwardCost
from server.engine.comparison import Comparison, Growth, Run

COST = ForwardCost(
    layer_parameters=1000,
    output_parameters=200,
    weights_bytes=4800,
    cache_bytes_per_token=64,
    attention_width=8,
    windows=(None, 16),
)
PROMPT = 10


def cached_seconds(length: int) -> float:
    return 0.002 + 1e-6 * length


def uncached_seconds(length: int) -> float:
    return 0.001 + 3e-5 * length + 2e-8 * length**2


def make_run(lengths, seconds, *, use_cache=False, wrong=()) -> Run:
    run = Run(use_cache=use_cache)
    for length in lengths:
        run.add(length, seconds(length), token_id=length % 7 + (100 if length in wrong else 0))
    return run


def compare(lengths=range(PROMPT, 401), *, wrong=()) -> Comparison:
    return Comparison(
        cached=make_run(range(PROMPT, 401), cached_seconds, use_cache=True),
        uncached=make_run(lengths, uncached_seconds, wrong=wrong),
        cost=COST,
    )


def test_growth_finds_the_polynomials():
    """The fit returns the coefficients that made the times."""
    growth = compare().growth
    assert growth["cached"].coefficients == pytest.approx((0.002, 1e-6), rel=1e-6)
    assert growth["uncached"].coefficients == pytest.approx((0.001, 3e-5, 2e-8), rel=1e-6)
    assert growth["uncached"].r_squared == pytest.approx(1.0)
    assert growth["cached"].is_supported
    assert growth["uncached"].is_supported


@pytest.mark.parametrize(
    ("seconds", "degree"),
    [
        (lambda length: 0.001 * length**0.5, 2),  # bends downwards
        (lambda length: 0.002 + 0.001 * (length % 7), 2),  # noise
        (lambda length: 0.002 + 0.0001 * (length % 2), 1),  # flat, and noise
    ],
)
def test_growth_that_the_times_do_not_show_is_not_claimed(seconds, degree):
    """The degree stays what theory gives, and the fit says that the times do not support it."""
    found = Growth.fit(make_run(range(PROMPT, 101), seconds), degree)
    assert found is not None
    assert found.degree == degree
    assert not found.is_supported


def test_growth_needs_enough_steps():
    """Two steps say nothing of a parabola."""
    assert Growth.fit(make_run(range(3), cached_seconds), 2) is None


def test_totals_are_sums_of_steps():
    """The whole answer up to a length is all of its steps, the prompt included."""
    row = compare().row(200)
    expected = sum(map(uncached_seconds, range(PROMPT, 201)))
    assert row["uncached"]["total_ms"] == pytest.approx(1000 * expected)
    assert not row["uncached"]["total_is_estimate"]
    assert row["total_speedup"] == pytest.approx(
        expected / sum(map(cached_seconds, range(PROMPT, 201)))
    )


def test_sampled_steps_make_good_estimates_and_say_so():
    """Totals over steps that were left out are marked, and close to the truth."""
    lengths = [*range(PROMPT, 65), 96, 128, 192, 256, 300, 400]
    row = compare(lengths).row(400)
    assert row["uncached"]["total_is_estimate"]
    exact = 1000 * sum(map(uncached_seconds, range(PROMPT, 401)))
    assert row["uncached"]["total_ms"] == pytest.approx(exact, rel=0.02)
    assert row["uncached"]["step_ms"] == pytest.approx(1000 * uncached_seconds(400))
    assert not compare(lengths).row(64)["uncached"]["total_is_estimate"]


def test_one_hiccup_is_no_step_time():
    """A step time is the median of its neighbourhood."""
    run = make_run(range(PROMPT, 101), lambda length: 9.0 if length == 50 else 0.01, use_cache=True)
    assert run.step_seconds(50) == 0.01
    assert run.step_seconds(PROMPT) == 0.01


def test_work_and_memory_are_those_of_the_configuration():
    """A cached step computes one token, an uncached one all; the cache holds all."""
    row = compare().row(100)
    assert row["cached"]["step_flops"] == COST.flops(start=99, stop=100)
    assert row["uncached"]["step_flops"] == COST.flops(start=0, stop=100)
    assert row["cached"]["step_bytes"] == COST.bytes_moved(start=99, stop=100)
    assert row["cache_bytes"] == 6400
    first = compare().row(PROMPT)
    assert first["cached"]["step_flops"] == first["uncached"]["step_flops"]


def test_differences_are_found():
    """The first step at which the two chose differently is named."""
    assert compare().first_difference is None
    assert compare(wrong={33, 70}).first_difference == 33
    assert compare(wrong={33}).to_json([64])["equal"] is False


def test_json_is_complete():
    """Everything a figure needs is in the JSON."""
    answer = json.loads(json.dumps(compare().to_json([64, 400]), allow_nan=False))
    assert [row["length"] for row in answer["rows"]] == [64, 400]
    assert answer["num_tokens_compared"] == 391
    assert len(answer["steps"]["cached"]["ms"]) == 391
    assert np.isclose(answer["growth"]["cached"]["seconds"][1], 1e-6)
