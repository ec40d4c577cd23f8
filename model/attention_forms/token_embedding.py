"""TokenEmbedding: vectors of tokens and sinusoids of their positions, added, with dropout."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class TokenEmbedding(nn.Module):
    """What an encoder or a decoder is given (arXiv:1706.03762, sections 3.4, 3.5 and 5.4).

    Args:
        vocab_size: V.
        hidden_size: C, an even number.
        dropout: Of the sums, in training only.
    """

    def __init__(self, vocab_size: int, hidden_size: int, *, dropout: float = 0.1) -> None:
        super().__init__()
        if hidden_size % 2:
            raise ValueError(f"hidden_size is {hidden_size}; expected an even number")
        self.weight = nn.Parameter(torch.randn(vocab_size, hidden_size) * hidden_size**-0.5)
        self.dropout = nn.Dropout(dropout)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Map ids (..., T) to (..., T, C)."""
        hidden_size = self.weight.shape[-1]
        embedded = self.weight[input_ids] * math.sqrt(hidden_size)
        sums: Tensor = self.dropout(embedded + sinusoids(input_ids.shape[-1], hidden_size))
        return sums


def sinusoids(num_positions: int, hidden_size: int) -> Tensor:
    """Sines and cosines of positions, (num_positions, C), in turn along the last axis."""
    frequencies = 10_000.0 ** (-torch.arange(0, hidden_size, 2) / hidden_size)  # (C / 2,)
    angles = torch.arange(num_positions)[:, None] * frequencies
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
