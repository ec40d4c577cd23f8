"""EncoderLayer: self attention in both directions and a feed-forward network, each added."""

from __future__ import annotations

from torch import Tensor, nn

from model.attention_forms.feed_forward import FeedForward
from model.attention_forms.multi_head import MultiHeadAttention


class EncoderLayer(nn.Module):
    """One layer of the encoder of "Attention Is All You Need" (arXiv:1706.03762, section 3.1).

    Args:
        hidden_size: C.
        num_heads: H.
        intermediate_size: Width of the feed-forward network.
        dropout: Of attention weights, of the network's hidden layer, and of what is added.
    """

    def __init__(
        self, hidden_size: int, num_heads: int, *, intermediate_size: int, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.self_attn = MultiHeadAttention(hidden_size, num_heads, dropout=dropout)
        self.feed_forward = FeedForward(hidden_size, intermediate_size, dropout=dropout)
        self.attention_norm = nn.LayerNorm(hidden_size)
        self.feed_forward_norm = nn.LayerNorm(hidden_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """Map x (B, T, C) to (B, T, C); `lengths` (B,) says how many leading tokens are real."""
        attended = self.self_attn(x, x, key_lengths=lengths)
        x = self.attention_norm(x + self.dropout(attended))
        out: Tensor = self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
        return out
