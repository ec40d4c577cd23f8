"""Qwen2-MoE: qwen2 with experts, and one more that every token passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

from model.config import ModelConfig
from model.families.experts_fields import hf_experts, hf_sparse_layers
from model.families.fields import Fields
from model.families.qwen2 import Qwen2
from model.families.tensor_parts import GGUFTensors, TensorPart


class Qwen2Moe(Qwen2):
    """Qwen1.5-MoE and Qwen2-MoE."""

    name = "qwen2_moe"
    gguf_name = "qwen2moe"
    gguf_renormalizes: ClassVar[bool] = False
    hf_defaults: ClassVar[Mapping[str, object]] = {
        "num_key_value_heads": 16,
        "sliding_window": 4096,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "num_experts_per_tok": 4,
    }

    def read_hf(self, fields: Fields) -> ModelConfig:
        """Read a config.json."""
        fields = fields.over(self.hf_defaults)
        config = super().read_hf(fields)
        experts = hf_experts(
            fields if "num_local_experts" in fields else fields.over({"num_experts": 60}),
            width="moe_intermediate_size",
            renormalize=fields.flag("norm_topk_prob", default=False),
            shared_width=fields.integer("shared_expert_intermediate_size"),
        )
        return replace(
            config,
            qkv_bias=fields.flag("qkv_bias", default=True),
            experts=experts,
            sparse_layers=hf_sparse_layers(fields, num_layers=config.num_layers),
        )

    def read_gguf(self, fields: Fields, tensors: GGUFTensors) -> ModelConfig:
        """Read GGUF metadata; biases are there or not."""
        config = super().read_gguf(fields, tensors)
        return replace(config, qkv_bias="blk.0.attn_q.bias" in tensors.names)

    def gguf_parts(
        self, key: str, shape: tuple[int, ...], config: ModelConfig
    ) -> Iterator[TensorPart]:
        """Make a matrix of the shared expert's gate, which is stored as a vector."""
        for part in super().gguf_parts(key, shape, config):
            is_gate = part.name.endswith(".shared_expert_gate.weight")
            yield replace(part, as_row=is_gate and len(shape) == 1)


FAMILY = Qwen2Moe()
