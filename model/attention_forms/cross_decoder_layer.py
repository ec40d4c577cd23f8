"""CrossDecoderLayer: causal self attention, attention to an encoder's output, feed-forward.

The layer of an encoder-decoder model, such as translation began with. The server's models have no
encoder; theirs is model.transformer.DecoderLayer. Of the two attentions here, the first needs a
cache that grows with each token, the second one that is computed once for the whole answer.
"""

from __future__ import annotations

from torch import Tensor, nn

from model.attention_forms.feed_forward import FeedForward
from model.attention_forms.multi_head import MultiHeadAttention


class CrossDecoderLayer(nn.Module):
    """One layer of the decoder of "Attention Is All You Need" (arXiv:1706.03762, section 3.1).

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
        self.cross_attn = MultiHeadAttention(hidden_size, num_heads, dropout=dropout)
        self.feed_forward = FeedForward(hidden_size, intermediate_size, dropout=dropout)
        self.attention_norm = nn.LayerNorm(hidden_size)
        self.cross_norm = nn.LayerNorm(hidden_size)
        self.feed_forward_norm = nn.LayerNorm(hidden_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor, *, memory_lengths: Tensor | None = None) -> Tensor:
        """Map the answer so far to what the next layer sees of it.

        Args:
            x: (B, T, C) the answer so far.
            memory: (B, S, C) the encoder's output.
            memory_lengths: (B,) how many of its leading tokens are real.

        Returns:
            (B, T, C).
        """
        x = self.attention_norm(x + self.dropout(self.self_attn(x, x, causal=True)))
        crossed = self.cross_attn(x, memory, key_lengths=memory_lengths)
        x = self.cross_norm(x + self.dropout(crossed))
        out: Tensor = self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
        return out
