"""AttentionRecorder: attention through the readable reference, keeping the weights it computes.

It stands where the fast path's backend stands, behind the same cache, so that what it shows is
what the model does when it serves. For short texts only: it holds a whole matrix of weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cache.view import BatchLayout, CacheView
from model.attention import scaled_dot_product_attention
from model.kv_pool import make_pool
from model.pass_context import PassContext
from model.torch_attention import TorchAttention
from model.transformer import Transformer

MAX_TOKENS = 256
"""The longest text whose attention is recorded: the weights grow with its square."""


class AttentionRecorder(TorchAttention):
    """An AttentionBackend for one whole sequence in the pool's block 1.

    Args:
        layer: The layer whose weights are kept; None is the mean of all.
        head: The head whose weights are kept; None is the mean of all.
    """

    def __init__(self, *, layer: int | None, head: int | None) -> None:
        self._layer = layer
        self._head = head
        self._calls = 0
        self._kept: list[Tensor] = []

    @property
    def weights(self) -> Tensor:
        """(S, S) float32, row i being what token i attends to; each row sums to 1."""
        return torch.stack(self._kept).mean(dim=0)

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        layout: BatchLayout,
        *,
        scale: float,
        window: int | None,
    ) -> Tensor:
        """Causal attention of q (S, H, D) over the sequence itself; returns (S, H, D)."""
        length = layout.max_key_length
        out, weights = scaled_dot_product_attention(
            q.transpose(0, 1),
            keys[1, :length].to(q.dtype).transpose(0, 1),
            values[1, :length].to(q.dtype).transpose(0, 1),
            causal=True,
            window=window,
            scale=scale,
        )
        if self._layer in (None, self._calls):  # the layers attend in their order
            heads = weights.float()
            self._kept.append(heads.mean(dim=0) if self._head is None else heads[self._head])
        self._calls += 1
        return out.transpose(0, 1)


@torch.inference_mode()
def record_attention(
    model: Transformer,
    token_ids: Sequence[int],
    *,
    layer: int | None,
    head: int | None,
    like: Tensor,
) -> tuple[Tensor, Tensor]:
    """Run a model over a short text and keep the attention weights of a layer and head.

    Args:
        model: The model, on its device.
        token_ids: The text, at least 1 and at most MAX_TOKENS tokens.
        layer: From 0; None is the mean of all layers.
        head: From 0; None is the mean of all heads.
        like: A tensor whose dtype and device the text's own cache takes.

    Returns:
        The weights (S, S), and the hidden states (S, C) that `Transformer.logits` takes.

    Raises:
        ValueError: The text is empty or too long, or there is no such layer or head.
    """
    _check("the number of tokens", len(token_ids), 1, MAX_TOKENS)
    if layer is not None:
        _check("layer", layer, 0, model.config.num_layers - 1)
    if head is not None:
        _check("head", head, 0, model.config.num_heads - 1)
    recorder = AttentionRecorder(layer=layer, head=head)
    pool = make_pool(
        model.config, num_blocks=2, block_size=MAX_TOKENS, dtype=like.dtype, device=like.device
    )
    view = CacheView(pool, _one_sequence(len(token_ids), like.device), recorder)
    ids = torch.tensor(token_ids, device=like.device)
    context = PassContext(torch.arange(len(ids), device=like.device), view)
    hidden = model.hidden_states(ids, context)
    return recorder.weights, hidden


def _one_sequence(length: int, device: torch.device) -> BatchLayout:
    """The layout of a batch that is one whole sequence in block 1."""
    return BatchLayout(
        slots=torch.arange(length, device=device) + MAX_TOKENS,
        query_starts=torch.tensor([0, length], device=device),
        key_lengths=torch.tensor([length], device=device),
        host_key_lengths=np.array([length]),
        block_table=torch.ones((1, 1), dtype=torch.int64, device=device),
        query_lengths=(length,),
        num_decodes=int(length == 1),
        max_key_length=length,
    )


def _check(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}; expected {least} to {most}")
