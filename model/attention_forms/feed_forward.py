"""FeedForward: the two linear maps with a ReLU between them that follow attention."""

from __future__ import annotations

from torch import Tensor, nn


class FeedForward(nn.Module):
    """down(dropout(relu(up(x)))), for each token alone (arXiv:1706.03762, section 3.3).

    Args:
        hidden_size: C.
        intermediate_size: Of the hidden layer.
        dropout: Of the hidden layer, in training only.
    """

    def __init__(self, hidden_size: int, intermediate_size: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.up_proj = nn.Linear(hidden_size, intermediate_size)
        self.down_proj = nn.Linear(intermediate_size, hidden_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (..., C) to (..., C)."""
        out: Tensor = self.down_proj(self.dropout(self.up_proj(x).relu()))
        return out
