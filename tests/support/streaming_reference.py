"""A streaming cache as its paper has it, around a model of transformers, one token at a time.

Keys of the sinks are turned on after each slide (arXiv:2309.17453, section 3.2), where ours
computes them anew: two ways to the same numbers, but for rounding.
"""

from __future__ import annotations

import inspect

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.models.llama.modeling_llama import rotate_half

Layers = list[tuple[Tensor, Tensor]]


class StreamingReference:
    """Feeds one text to a model and keeps its first tokens and its last ones.

    Args:
        model: A llama of transformers, whose rotary is not scaled.
        size: Of the last tokens, the most that are kept.
        sinks: First tokens that are kept.
        stride: Tokens dropped when there is no room for another.
    """

    def __init__(self, model: PreTrainedModel, *, size: int, sinks: int, stride: int) -> None:
        self._model = model
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._capacity, self._sinks, self._stride = size + sinks, sinks, stride
        self._layers: Layers = []
        self._position = 0

    def logprobs(self, token_ids: list[int]) -> Tensor:
        """Natural log-probabilities (N, V) of what follows each token."""
        with torch.inference_mode():
            return torch.stack([self._step(token_id) for token_id in token_ids])

    def _step(self, token_id: int) -> Tensor:
        if self._layers and self._layers[0][0].shape[2] == self._capacity:
            self._layers = [self._slid(*layer) for layer in self._layers]
        cache = DynamicCache()
        for index, (keys, values) in enumerate(self._layers):
            cache.update(keys, values, index)
        position = torch.tensor([[self._position]])
        out = self._model(
            torch.tensor([[token_id]]), position_ids=position, **{self._cache_name: cache}
        )
        self._layers = [(layer.keys, layer.values) for layer in cache.layers]
        self._position += 1
        return out.logits[0, -1].log_softmax(-1)

    def _slid(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Drop the oldest behind the sinks, and turn the sinks on by as many positions."""
        behind = self._sinks + self._stride
        distance = torch.tensor([[self._stride]])
        cos, sin = self._model.model.rotary_emb(keys, distance)
        first = keys[:, :, : self._sinks]
        turned = first * cos[:, None] + rotate_half(first) * sin[:, None]
        kept = torch.cat([turned, keys[:, :, behind:]], dim=2)
        return kept, torch.cat([values[:, :, : self._sinks], values[:, :, behind:]], dim=2)
