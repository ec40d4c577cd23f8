"""The weighted mean that every softmax attention ends with, whatever its scores come from."""

from __future__ import annotations

import torch
from torch import Tensor


def weighted_mean(
    scores: Tensor, v: Tensor, *, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Turn scores into weights by a softmax, and take the mean of the values with them.

    Args:
        scores: (..., T, S).
        v: (..., S, Dv) values.
        mask: (..., T, S) True where a query may see a key; a query that sees none gets zeros.

    Returns:
        The output (..., T, Dv) and the weights (..., T, S).
    """
    if mask is None:
        weights = scores.softmax(dim=-1)
    else:
        # A finite filling: a wholly hidden row must become zero, and its gradient no NaN.
        hidden = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        weights = hidden.softmax(dim=-1).masked_fill(~mask, 0.0)
    return weights @ v, weights
