"""AttentionRecording: attention through the readable reference, keeping the weights it computes.

It stands where the fast path's backend stands, behind the same cache, so that what it shows is
what the model does when it serves. For short texts only: it holds a whole matrix of weights.
It goes on piece by piece, each shorter than a chunk of a prompt, so that others can be served in
between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
_ROWS = 32
"""Tokens of one piece, in one layer."""


class _Recorder(TorchAttention):
    """An AttentionBackend for one sequence in the pool's block 1.

    Args:
        weights: (S, S) float32, to which what each row attends to is added.
        head: The head whose weights are kept; None is the mean of all.
    """

    def __init__(self, weights: Tensor, *, head: int | None) -> None:
        self._weights = weights
        self._head = head
        self.is_kept = False
        """Whether the layer that attends now is one whose weights are kept."""

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        layout: BatchLayout,
        *,
        scale: float,
        window: int | None,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Causal attention of q (T, H, D), the last of S tokens; returns (T, H, D)."""
        length = layout.max_key_length
        out, weights = scaled_dot_product_attention(
            q.transpose(0, 1),
            keys[1, :length].to(q.dtype).transpose(0, 1),
            values[1, :length].to(q.dtype).transpose(0, 1),
            causal=True,
            window=window,
            scale=scale,
            cap=cap,
            sinks=sinks,
        )
        if self.is_kept:
            heads = weights.float()
            rows = heads.mean(dim=0) if self._head is None else heads[self._head]
            self._weights[length - len(q) : length, :length] += rows
        return out.transpose(0, 1)


class AttentionRecording:
    """A model run over a short text, keeping the attention weights of a layer and head.

    Args:
        model: The model, on its device.
        token_ids: The text, at least 1 and at most MAX_TOKENS tokens.
        layer: From 0; None is the mean of all layers.
        head: From 0; None is the mean of all heads.
        like: A tensor whose dtype and device the text's own cache takes.

    Raises:
        ValueError: The text is empty or too long, or there is no such layer or head.
    """

    def __init__(
        self,
        model: Transformer,
        token_ids: Sequence[int],
        *,
        layer: int | None,
        head: int | None,
        like: Tensor,
    ) -> None:
        config = model.config
        _check("the number of tokens", len(token_ids), 1, MAX_TOKENS)
        if layer is not None:
            _check("layer", layer, 0, config.num_layers - 1)
        if head is not None:
            _check("head", head, 0, config.num_heads - 1)
        self._model = model.model
        self._layer = layer
        self._sum = torch.zeros(len(token_ids), len(token_ids), device=like.device)
        self._recorder = _Recorder(self._sum, head=head)
        self._pool = make_pool(
            config, num_blocks=2, block_size=MAX_TOKENS, dtype=like.dtype, device=like.device
        )
        self._ids = torch.tensor(token_ids, device=like.device)
        self._pieces = self._run()
        self.hidden = torch.empty(0)
        """(S, C), of which `Transformer.logits` takes any rows; complete in the end."""

    @property
    def weights(self) -> Tensor:
        """(S, S) float32, row i being what token i attends to; each row sums to 1 in the end."""
        return self._sum / (len(self._model.layers) if self._layer is None else 1)

    @torch.inference_mode()
    def advance(self) -> bool:
        """Compute the next piece: some tokens in one layer.

        Returns:
            Whether there was one; if not, the recording is complete.
        """
        return next(self._pieces, None) is not None

    def _run(self) -> Iterator[int]:
        """The pieces, by their layers."""
        positions = torch.arange(len(self._ids), device=self._ids.device)
        self.hidden = self._model.embed(self._ids, positions)
        for index, layer in enumerate(self._model.layers):
            self._recorder.is_kept = self._layer in (None, index)
            hidden = torch.empty_like(self.hidden)
            for rows in torch.split(positions, _ROWS):
                view = CacheView(self._pool, _layout(rows), self._recorder)
                hidden[rows] = layer(self.hidden[rows], PassContext(rows, view))
                yield index
            self.hidden = hidden


def record_attention(
    model: Transformer,
    token_ids: Sequence[int],
    *,
    layer: int | None,
    head: int | None,
    like: Tensor,
) -> tuple[Tensor, Tensor]:
    """Make a whole recording at once; the arguments are AttentionRecording's.

    Returns:
        The weights (S, S), and the hidden states (S, C) that `Transformer.logits` takes.

    Raises:
        ValueError: An argument is out of its bounds.
    """
    recording = AttentionRecording(model, token_ids, layer=layer, head=head, like=like)
    while recording.advance():
        pass
    return recording.weights, recording.hidden


def _layout(rows: Tensor) -> BatchLayout:
    """The layout of a batch that is these tokens (T,) of the one sequence, which is in block 1."""
    count, end = len(rows), int(rows[-1]) + 1
    return BatchLayout(
        slots=rows + MAX_TOKENS,
        query_starts=torch.tensor([0, count], device=rows.device),
        key_lengths=torch.tensor([end], device=rows.device),
        host_key_lengths=np.array([end]),
        block_table=torch.ones((1, 1), dtype=torch.int64, device=rows.device),
        query_lengths=(count,),
        num_decodes=int(count == 1),
        max_key_length=end,
    )


def _check(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}; expected {least} to {most}")
