"""Low-rank attention against torch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from model.attention_forms.low_rank import low_rank_attention


def test_it_is_attention_to_projected_keys_and_values():
    """Torch's attention over the projected keys and values gives the same."""
    q, k, v = torch.randn(2, 3, 9, 4), torch.randn(2, 3, 9, 4), torch.randn(2, 3, 9, 5)
    key_projection, value_projection = torch.randn(6, 9), torch.randn(6, 9)
    out, weights = low_rank_attention(
        q, k, v, key_projection=key_projection, value_projection=value_projection
    )
    wanted = functional.scaled_dot_product_attention(
        q,
        torch.einsum("rs,bhsd->bhrd", key_projection, k),
        torch.einsum("rs,bhsd->bhrd", value_projection, v),
    )
    torch.testing.assert_close(out, wanted)
    assert weights.shape == (2, 3, 9, 6)


@pytest.mark.parametrize("length", [4, 8])
def test_all_of_the_rank_is_full_attention(length: int):
    """With the identity as projection nothing is lost."""
    q, k, v = torch.randn(3, length, 4).unbind()
    whole = torch.eye(length)
    out, _ = low_rank_attention(q, k, v, key_projection=whole, value_projection=whole)
    torch.testing.assert_close(out, functional.scaled_dot_product_attention(q, k, v))
