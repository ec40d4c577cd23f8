"""Qwen3: llama with normalised query and key heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from model.config import ModelConfig
from model.families.family import Family
from model.families.fields import Fields
from model.families.hf_fields import hf_qwen_layer_types
from model.families.tensor_parts import GGUFTensors


class Qwen3(Family):
    """Qwen 3."""

    name = "qwen3"
    gguf_name = "qwen3"
    hf_defaults: ClassVar[Mapping[str, object]] = {
        "num_key_value_heads": 32,
        "sliding_window": 4096,
        "head_dim": 128,
    }

    def read_hf(self, fields: Fields) -> ModelConfig:
        """Read a config.json."""
        bias = fields.flag("attention_bias", default=False)
        config = super().read_hf(fields)
        return replace(config, qk_norm="head", qkv_bias=bias, output_bias=bias)

    def hf_layer_types(self, fields: Fields, *, num_layers: int) -> list[str]:
        """The last layers have a window, if a switch says so."""
        return hf_qwen_layer_types(fields, num_layers=num_layers)

    def read_gguf(self, fields: Fields, tensors: GGUFTensors) -> ModelConfig:
        """Read GGUF metadata, which cannot say which layers have the window."""
        fields.refuse("attention.sliding_window", neutral=(0,))
        return replace(super().read_gguf(fields, tensors), qk_norm="head")


FAMILY = Qwen3()
