"""Blocks of the vocabulary against whole rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from server.engine.sampling.vocabulary_blocks import (
    BLOCK,
    as_blocks,
    cumulated_blocks,
    inverse_cdf,
    largest_id,
    largest_ids,
    largest_values,
)


@pytest.mark.parametrize("vocab_size", [1, 5, 255, 256, 300, 1000, 5120])
def test_largest_ids_break_ties_by_lower_id(vocab_size: int) -> None:
    """The largest ids equal a stable sort, also with many ties, both zeros and infinities."""
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randint(-3, 3, (7, vocab_size), generator=generator).float()
    logits[0] = 0.0
    logits[0, ::2] = -0.0
    logits[1] = -torch.inf
    logits[2, 0] = torch.inf
    order = torch.sort(logits, descending=True, stable=True).indices
    for count in (0, 1, 20):
        assert torch.equal(largest_ids(logits, count), order[:, :count])
    blocks = as_blocks(logits)
    assert torch.equal(largest_id(blocks, blocks.amax(-1)), order[:, 0])


def test_inverse_cdf_equals_search_in_the_whole_sum() -> None:
    """The token is where the float64 sum in order of id passes the number."""
    generator = torch.Generator().manual_seed(1)
    probs = torch.rand(50, 3 * BLOCK, generator=generator)
    probs *= torch.rand(50, 3 * BLOCK, generator=generator) < 0.1
    numbers = torch.rand(50, 1, generator=generator, dtype=torch.float64)
    ids = inverse_cdf(probs, numbers)
    sums = np.cumsum(probs.double().numpy(), axis=1)
    expected = [
        np.searchsorted(row, number * row[-1], side="right")
        for row, number in zip(sums, numbers[:, 0].numpy(), strict=True)
    ]
    assert ids.tolist() == expected


@pytest.mark.parametrize("number", [0.0, 2.0**-53, 0.5, 1 - 2.0**-53, 1.0])
def test_inverse_cdf_never_returns_an_impossible_token(number: float) -> None:
    """At either end of [0, 1] the token is one of positive probability."""
    generator = torch.Generator().manual_seed(2)
    probs = torch.rand(400, 4 * BLOCK, generator=generator) ** 8
    probs *= torch.rand(400, 4 * BLOCK, generator=generator) < 0.02
    probs[:200, -2 * BLOCK :] = 0
    probs[100:300, :BLOCK] = 0
    ids = inverse_cdf(probs, torch.full((400, 1), number, dtype=torch.float64))
    assert (probs.gather(1, ids.unsqueeze(1)) > 0).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_sums_do_not_depend_on_the_rows_beside(threads: int) -> None:
    """The sums of a row are bitwise the same alone and among any number of rows."""
    probs = torch.rand(33, 40 * BLOCK, generator=torch.Generator().manual_seed(3))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole = cumulated_blocks(probs)
        for rows in (1, 2, 5, 32):
            assert torch.equal(cumulated_blocks(probs[:rows]), whole[:rows])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 7, 256, 5000])
def test_largest_values_equal_a_sort(count: int) -> None:
    """The largest values come in order, repeated as often as they occur."""
    values = torch.randint(0, 900, (5, 40 * BLOCK), generator=torch.Generator().manual_seed(4)) / 9
    values[0, 2 * BLOCK :] = 0
    assert torch.equal(
        largest_values(values, count), values.sort(descending=True).values[:, :count]
    )
    assert largest_values(values[:, :BLOCK], 2 * BLOCK).shape == (5, BLOCK)
