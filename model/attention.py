"""Attention: the readable definition, and the causal multi-head layer built around it.

`scaled_dot_product_attention` is the reference: every form in one page of plain tensor
operations, fully differentiable, returning its weights. `CausalMultiHeadAttention` is the layer of
a language model. It owns its projections and norms, and knows no cache layout: it hands new keys
and values to a CacheView and asks it to attend, or uses the reference when there is no cache.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.config import ModelConfig
from model.layers import Linear, RMSNorm, RotaryEmbedding
from model.ops import soft_cap
from model.pass_context import PassContext
from model.torch_attention import softmax_with_sinks


def scaled_dot_product_attention(  # noqa: PLR0913 - each option is one form of attention
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    key_lengths: Tensor | None = None,
    scale: float | None = None,
    cap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    training: bool = False,
) -> tuple[Tensor, Tensor]:
    """Let each query take the mean of the values, weighted by how well it matches their keys.

        weights = softmax(scale * q k^T), over the keys that may be seen;  output = weights v

    This is Vaswani et al., "Attention Is All You Need", section 3.2 (arXiv:1706.03762). Leading
    axes are optional: (T, D) is one head, (H, T, D) several, (B, H, T, D) a batch of them. Self
    attention takes q, k and v from one sequence, cross attention k and v from another.

    The mask convention, here and everywhere: a boolean mask is True where a query MAY see a key;
    a floating mask is added to the scores, and minus infinity hides a key. A key must pass every
    restriction given. A query that may see no key has weights and output of zero, not NaN.

    Args:
        q: (..., H, T, D) queries.
        k: (..., Hkv, S, D) keys. If Hkv < H, each key head serves H / Hkv neighbouring query
            heads (grouped-query attention, arXiv:2305.13245).
        v: (..., Hkv, S, Dv) values.
        mask: Broadcasts to (..., H, T, S); for padded batches (B, 1, 1, S) marks the real keys.
        causal: No query sees a later key. The queries are the last T of the S positions, so that
            query i stands at position S - T + i.
        window: A query sees only keys less than this many positions away, its own included.
        key_lengths: How many leading keys are real, one for each sequence: shape (B,), or in
            general that of the leading axes.
        scale: Factor of the scores; by default 1/sqrt(D).
        cap: Soft cap: a score s becomes cap x tanh(s / cap) (arXiv:2408.00118).
        sinks: (H,) for each head a score that takes part in the softmax without a value, so that
            the weights may sum to less than 1 (arXiv:2309.17453).
        dropout: Probability that a weight is set to zero, and the others enlarged to make up.
        training: Whether dropout happens at all.

    Returns:
        The output (..., H, T, Dv), and the weights (..., H, T, S) that made it, in q's dtype.

    Raises:
        ValueError: The axes do not fit together, or an argument is out of its bounds.
    """
    _check_shapes(q, k, v)
    _check_options(window=window, dropout=dropout)
    k, v = _repeat_heads(q, k, v)
    scale = q.shape[-1] ** -0.5 if scale is None else scale

    # Half precision is too coarse for scores; float64 stays what it is.
    precise = torch.promote_types(q.dtype, torch.float32)
    scores = soft_cap((q.to(precise) @ k.to(precise).mT) * scale, cap)  # (..., H, T, S)
    visible = _visible(scores, causal=causal, window=window, key_lengths=key_lengths)
    if mask is not None:
        _check_mask(mask, scores)
        if mask.dtype == torch.bool:
            visible = visible & mask
        else:
            visible = visible & (mask != -torch.inf)
            scores = scores + mask.to(precise)

    # A finite filling keeps a wholly hidden row, and its gradient, free of NaN; the second
    # filling then makes the row zero. Where anything is visible, exp() of the filling is 0 anyway.
    scores = scores.masked_fill(~visible, torch.finfo(precise).min)
    weights = softmax_with_sinks(scores, sinks).masked_fill(~visible, 0.0)
    weights = functional.dropout(weights, dropout, training=training)
    return (weights @ v.to(precise)).to(q.dtype), weights.to(q.dtype)


def _visible(
    scores: Tensor, *, causal: bool, window: int | None, key_lengths: Tensor | None
) -> Tensor:
    """Return a boolean mask that broadcasts to scores (..., T, S), True where a key is seen."""
    num_queries, num_keys = scores.shape[-2:]
    key = torch.arange(num_keys, device=scores.device)  # (S,)
    query = torch.arange(num_keys - num_queries, num_keys, device=scores.device)[:, None]  # (T, 1)
    visible = torch.ones_like(query - key, dtype=torch.bool)  # (T, S)
    if causal:
        visible = visible & (key <= query)
    if window is not None:
        visible = visible & ((query - key).abs() < window)
    if key_lengths is not None:
        leading = scores.shape[:-2]
        if key_lengths.shape != leading[: key_lengths.ndim]:
            raise ValueError(
                f"key_lengths has shape {tuple(key_lengths.shape)}; "
                f"expected that of the leading axes of q, {tuple(leading)}, or their beginning"
            )
        lengths = key_lengths.reshape(*key_lengths.shape, *[1] * (scores.ndim - key_lengths.ndim))
        visible = visible & (key < lengths)
    return visible


def _repeat_heads(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Repeat each key/value head for the query heads it serves."""
    if q.ndim < 3 or q.shape[-3] == k.shape[-3]:
        return k, v
    group = q.shape[-3] // k.shape[-3]
    return k.repeat_interleave(group, dim=-3), v.repeat_interleave(group, dim=-3)


def _check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Say which two axes disagree, and their sizes."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.ndim < 2 or tensor.ndim != q.ndim:
            raise ValueError(
                f"{name} has {tensor.ndim} axes and q has {q.ndim}; "
                "expected the same number, at least 2 (tokens, head size)"
            )
    pairs = [
        ("the head size (last axis) of q", q.shape[-1], "that of k", k.shape[-1]),
        ("the number of keys (axis -2 of k)", k.shape[-2], "of values (of v)", v.shape[-2]),
    ]
    if q.ndim > 2:
        pairs.append(("the number of heads (axis -3) of k", k.shape[-3], "that of v", v.shape[-3]))
    for axis in range(q.ndim - 3):
        pairs.append((f"axis {axis} of q", q.shape[axis], "that of k", k.shape[axis]))
        pairs.append((f"axis {axis} of k", k.shape[axis], "that of v", v.shape[axis]))
    for first, size, second, other in pairs:
        if size != other:
            raise ValueError(f"{first} is {size}, but {second} is {other}")
    if q.ndim > 2 and (k.shape[-3] == 0 or q.shape[-3] % k.shape[-3]):
        raise ValueError(
            f"the number of heads (axis -3) of q is {q.shape[-3]}, "
            f"which is no multiple of that of k, {k.shape[-3]}"
        )


def _check_options(*, window: int | None, dropout: float) -> None:
    if window is not None and window < 1:
        raise ValueError(f"window is {window}; expected at least 1, the query's own position")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout is {dropout}; expected at least 0 and below 1")


def _check_mask(mask: Tensor, scores: Tensor) -> None:
    """Check that a mask is of a known kind and stretches to (..., H, T, S) without enlarging it."""
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ValueError(
            f"mask has dtype {mask.dtype}; expected bool (True may be seen) or a floating one "
            "(added to the scores)"
        )
    fits = mask.ndim <= scores.ndim and all(
        size in (1, wanted)
        for size, wanted in zip(reversed(mask.shape), reversed(scores.shape), strict=False)
    )
    if not fits:
        raise ValueError(
            f"mask has shape {tuple(mask.shape)}, which does not broadcast to the scores' "
            f"(..., heads, queries, keys) = {tuple(scores.shape)}"
        )


class CausalMultiHeadAttention(nn.Module):
    """Several heads of causal attention over one sequence or a ragged batch of them.

    Args:
        config: The model's configuration.
        layer: Which layer this is; it selects the window and the place in the cache.
        rotary: Turns queries and keys by their positions; None when the model does not.
        dtype: Of the projection matrices.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        *,
        rotary: RotaryEmbedding | None,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        hidden, head_dim = config.hidden_size, config.head_dim
        self.layer = layer
        self.head_dim = head_dim
        self.scale = config.attention_scale
        self.window = config.windows[layer]
        self.cap = config.attention_cap
        self.sinks = nn.Parameter(torch.zeros(config.num_heads)) if config.attention_sinks else None
        self.rotary = rotary

        def projection(num_heads: int) -> Linear:
            return Linear(hidden, num_heads * head_dim, bias=config.qkv_bias, dtype=dtype)

        self.q_proj = projection(config.num_heads)
        self.k_proj = projection(config.num_kv_heads)
        self.v_proj = projection(config.num_kv_heads)
        self.o_proj = Linear(
            config.num_heads * head_dim, hidden, bias=config.output_bias, dtype=dtype
        )

        def norm(num_heads: int) -> RMSNorm | None:
            if config.qk_norm is None:
                return None
            size = head_dim if config.qk_norm == "head" else num_heads * head_dim
            return RMSNorm(size, eps=config.norm_eps)

        self.normalizes_rows = config.qk_norm == "row"
        self.q_norm = norm(config.num_heads)
        self.k_norm = norm(config.num_kv_heads)

    def forward(self, x: Tensor, context: PassContext) -> Tensor:
        """Attend from each token to itself and the earlier tokens of its sequence.

        Args:
            x: (N, C) hidden states.
            context: Where the tokens stand, whose they are, and what came before.

        Returns:
            (N, C) in the dtype of x.
        """
        positions, kv = context.positions, context.kv
        q = self._turn(self.q_proj(x), self.q_norm, positions)  # (N, H, D)
        k = self._turn(self.k_proj(x), self.k_norm, positions)  # (N, Hkv, D)
        v = self._split(self.v_proj(x))  # (N, Hkv, D)
        if kv is None:
            heads, _ = scaled_dot_product_attention(
                q.transpose(0, 1),
                k.transpose(0, 1),
                v.transpose(0, 1),
                causal=True,
                window=self.window,
                scale=self.scale,
                cap=self.cap,
                sinks=self.sinks,
            )
            out = heads.transpose(0, 1)
        else:
            kv.update(self.layer, k, v)
            out = kv.attend(
                self.layer,
                q,
                scale=self.scale,
                window=self.window,
                cap=self.cap,
                sinks=self.sinks,
            )
        projected: Tensor = self.o_proj(out.flatten(1))
        return projected

    def _split(self, x: Tensor) -> Tensor:
        """Split projections (N, heads x D) into heads (N, heads, D)."""
        return x.view(len(x), -1, self.head_dim)

    def _turn(self, x: Tensor, norm: RMSNorm | None, positions: Tensor) -> Tensor:
        """Normalise projections and turn their heads (N, heads, D), where the model does."""
        if norm is not None and self.normalizes_rows:
            x = norm(x)
        heads = self._split(x)
        if norm is not None and not self.normalizes_rows:
            heads = norm(heads)
        if self.rotary is not None:
            heads = self.rotary(heads, positions)
        return heads
