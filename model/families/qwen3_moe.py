"""Qwen3-MoE: qwen3 with experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from model.config import ModelConfig
from model.families.experts_fields import hf_experts, hf_sparse_layers
from model.families.fields import Fields
from model.families.hf_fields import FULL, hf_uniform_layer_types
from model.families.qwen3 import Qwen3


class Qwen3Moe(Qwen3):
    """Qwen3-30B-A3B and its kin."""

    name = "qwen3_moe"
    gguf_name = "qwen3moe"
    hf_defaults: ClassVar[Mapping[str, object]] = {
        "num_key_value_heads": 4,
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
    }

    def read_hf(self, fields: Fields) -> ModelConfig:
        """Read a config.json."""
        fields = fields.over(self.hf_defaults)
        fields.refuse("use_sliding_window", neutral=(False,))
        config = super().read_hf(fields)
        return replace(
            config,
            experts=hf_experts(
                fields if "num_local_experts" in fields else fields.over({"num_experts": 128}),
                width="moe_intermediate_size",
                renormalize=fields.flag("norm_topk_prob", default=False),
            ),
            sparse_layers=hf_sparse_layers(fields, num_layers=config.num_layers),
        )

    def hf_layer_types(self, fields: Fields, *, num_layers: int) -> list[str]:
        """No layer has a window."""
        return hf_uniform_layer_types(fields, FULL, num_layers=num_layers)


FAMILY = Qwen3Moe()
