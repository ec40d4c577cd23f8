"""Qwen3-MoE."""

import gguf
from expert_tensors import add_expert_fields, stacked_experts
from family_case import FamilyCase, Shape
from transformers import PretrainedConfig, Qwen3MoeConfig


def make(shape: Shape) -> dict[str, PretrainedConfig]:
    sizes = {"num_experts": 8, "moe_intermediate_size": 32, "head_dim": 32}
    return {
        "rand-qwen3-moe": Qwen3MoeConfig(
            **shape, **sizes, num_experts_per_tok=2, norm_topk_prob=True
        ),
        "rand-qwen3-moe-plain": Qwen3MoeConfig(
            **shape,
            **sizes,
            num_experts_per_tok=5,
            norm_topk_prob=False,
            attention_bias=True,
            mlp_only_layers=[1],
        ),
    }


def add_fields(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    add_expert_fields(writer, config)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)


CASE = FamilyCase(
    make=make,
    arch=gguf.MODEL_ARCH.QWEN3MOE,
    add_fields=add_fields,
    stack=stacked_experts,
    has_twin=lambda config: not config.mlp_only_layers,
)
