"""Qwen2-MoE."""

from collections.abc import Iterator

import gguf
import numpy as np
from expert_tensors import add_expert_fields, stacked_experts
from family_case import Array, FamilyCase, Shape
from transformers import PretrainedConfig, Qwen2MoeConfig


def make(shape: Shape) -> dict[str, PretrainedConfig]:
    sizes = {
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 96,
    }
    return {
        "rand-qwen2-moe": Qwen2MoeConfig(**shape, **sizes),
        "rand-qwen2-moe-sparse": Qwen2MoeConfig(
            **shape | {"num_hidden_layers": 4},
            **sizes,
            norm_topk_prob=True,
            decoder_sparse_step=2,
            mlp_only_layers=[3],
            tie_word_embeddings=True,
        ),
    }


def add_fields(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    add_expert_fields(writer, config)
    writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


def convert(name: str, weight: Array, config: PretrainedConfig) -> Iterator[tuple[str, Array]]:
    if name.endswith("shared_expert_gate.weight"):
        yield name, np.squeeze(weight)
    else:
        yield name, weight


CASE = FamilyCase(
    make=make,
    arch=gguf.MODEL_ARCH.QWEN2MOE,
    add_fields=add_fields,
    convert=convert,
    stack=stacked_experts,
    has_twin=lambda config: config.decoder_sparse_step == 1,
)
