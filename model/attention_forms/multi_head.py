"""MultiHeadAttention: several heads from one sequence to itself or to another, with dropout."""

from __future__ import annotations

from torch import Tensor, nn

from model.attention import scaled_dot_product_attention


class MultiHeadAttention(nn.Module):
    """Project to heads, attend in each, and project back (arXiv:1706.03762, section 3.2.2).

    Args:
        hidden_size: C, a multiple of num_heads.
        num_heads: H.
        dropout: Probability that an attention weight is set to zero, in training only.
    """

    def __init__(self, hidden_size: int, num_heads: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        if hidden_size % num_heads:
            raise ValueError(f"hidden_size is {hidden_size}, no multiple of num_heads, {num_heads}")
        self.num_heads = num_heads
        self.dropout = dropout
        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.k_proj = nn.Linear(hidden_size, hidden_size)
        self.v_proj = nn.Linear(hidden_size, hidden_size)
        self.o_proj = nn.Linear(hidden_size, hidden_size)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        *,
        causal: bool = False,
        key_lengths: Tensor | None = None,
    ) -> Tensor:
        """Attend from each token of x to the tokens of `memory`, which is x for self attention.

        Args:
            x: (B, T, C).
            memory: (B, S, C).
            causal: No token sees a later one.
            key_lengths: (B,) how many leading tokens of `memory` are real.

        Returns:
            (B, T, C).
        """
        heads, _ = scaled_dot_product_attention(
            self._split(self.q_proj(x)),
            self._split(self.k_proj(memory)),
            self._split(self.v_proj(memory)),
            causal=causal,
            key_lengths=key_lengths,
            dropout=self.dropout,
            training=self.training,
        )
        out: Tensor = self.o_proj(heads.transpose(1, 2).flatten(2))
        return out

    def _split(self, x: Tensor) -> Tensor:
        """Split (B, T, C) into heads (B, H, T, D)."""
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)
