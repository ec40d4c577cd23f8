"""Qwen2: llama with biases on queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from model.config import ModelConfig
from model.families.family import Family
from model.families.fields import Fields
from model.families.hf_fields import hf_qwen_layer_types
from model.families.tensor_parts import GGUFTensors


class Qwen2(Family):
    """Qwen 2 and 2.5."""

    name = "qwen2"
    gguf_name = "qwen2"
    hf_defaults: ClassVar[Mapping[str, object]] = {
        "num_key_value_heads": 32,
        "sliding_window": 4096,
    }

    def read_hf(self, fields: Fields) -> ModelConfig:
        """Read a config.json."""
        return replace(super().read_hf(fields), qkv_bias=True)

    def hf_layer_types(self, fields: Fields, *, num_layers: int) -> list[str]:
        """The last layers have a window, if a switch says so."""
        return hf_qwen_layer_types(fields, num_layers=num_layers)

    def read_gguf(self, fields: Fields, tensors: GGUFTensors) -> ModelConfig:
        """Read GGUF metadata, which cannot say which layers have the window."""
        fields.refuse("attention.sliding_window", neutral=(0,))
        return replace(super().read_gguf(fields, tensors), qkv_bias=True)


FAMILY = Qwen2()
