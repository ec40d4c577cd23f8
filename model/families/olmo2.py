"""OLMo 2: norms of what attention and MLP add instead of before them, and of queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from model.config import ModelConfig
from model.families.family import Family
from model.families.fields import Fields
from model.families.tensor_parts import GGUFTensors


class Olmo2(Family):
    """OLMo 2."""

    name = "olmo2"
    gguf_name = "olmo2"
    hf_defaults: ClassVar[Mapping[str, object]] = {"rms_norm_eps": 1e-5}
    gguf_in_block: ClassVar[Mapping[str, str]] = {
        **Family.gguf_in_block,
        "post_attention_norm": "post_attention_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }

    def read_hf(self, fields: Fields) -> ModelConfig:
        """Read a config.json."""
        bias = fields.flag("attention_bias", default=False)
        return replace(
            super().read_hf(fields),
            norm_placement="post",
            qk_norm="row",
            qkv_bias=bias,
            output_bias=bias,
        )

    def read_gguf(self, fields: Fields, tensors: GGUFTensors) -> ModelConfig:
        """Read GGUF metadata; with a window it is OLMo 3."""
        fields.refuse("attention.sliding_window", neutral=(0,))
        return replace(super().read_gguf(fields, tensors), norm_placement="post", qk_norm="row")


FAMILY = Olmo2()
