"""Llama: the skeleton that most families share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from model.config import ModelConfig
from model.families.family import GGUF_BLOCK_NAME, Family
from model.families.fields import Fields
from model.families.gguf_fields import gguf_window
from model.families.tensor_parts import GGUFTensors, TensorPart


class Llama(Family):
    """Llama 1 to 3; in GGUF also the mistrals, whose window is everywhere."""

    name = "llama"
    gguf_name = "llama"

    def read_hf(self, fields: Fields) -> ModelConfig:
        """Read a config.json: as Family, with optional biases."""
        bias = fields.flag("attention_bias", default=False)
        return replace(
            super().read_hf(fields),
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=fields.flag("mlp_bias", default=False),
        )

    def read_gguf(self, fields: Fields, tensors: GGUFTensors) -> ModelConfig:
        """Read GGUF metadata: as Family, with an optional window, and the biases that are there."""
        config = super().read_gguf(fields, tensors)
        return replace(
            config,
            windows=(gguf_window(fields),) * config.num_layers,
            qkv_bias="blk.0.attn_q.bias" in tensors.names,
            output_bias="blk.0.attn_output.bias" in tensors.names,
            mlp_bias="blk.0.ffn_up.bias" in tensors.names,
        )

    def gguf_parts(
        self, key: str, shape: tuple[int, ...], config: ModelConfig
    ) -> Iterator[TensorPart]:
        """Undo the interleaving of query and key rows.

        The conversion puts the two halves of each head, which rotary turns together, side by
        side: row i of the first half, row i of the second, and so on.
        """
        block = GGUF_BLOCK_NAME.fullmatch(key)
        heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
        count = heads.get(block[2]) if block else None
        if count is None or shape[0] != count * config.head_dim:
            yield from super().gguf_parts(key, shape, config)
            return
        pairs = np.arange(shape[0]).reshape(count, config.head_dim // 2, 2)
        yield TensorPart(name=self.gguf_canonical(key), rows=pairs.transpose(0, 2, 1).reshape(-1))


FAMILY = Llama()
