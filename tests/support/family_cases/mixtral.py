"""Mixtral."""

import gguf
from expert_tensors import add_expert_fields, stacked_experts
from family_case import FamilyCase, Shape, interleaved_heads
from transformers import MixtralConfig, PretrainedConfig


def make(shape: Shape) -> dict[str, PretrainedConfig]:
    return {
        "rand-mixtral": MixtralConfig(**shape, num_local_experts=4, num_experts_per_tok=2),
        "rand-mixtral-windowed": MixtralConfig(
            **shape, num_local_experts=3, num_experts_per_tok=1, sliding_window=16
        ),
    }


CASE = FamilyCase(
    make=make,
    arch=gguf.MODEL_ARCH.LLAMA,
    gguf_architecture="llama",
    add_fields=add_expert_fields,
    convert=interleaved_heads,
    stack=stacked_experts,
    has_twin=lambda config: config.sliding_window is None,
)
