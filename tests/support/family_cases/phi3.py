"""Phi-3."""

import gguf
import numpy as np
from family_case import FamilyCase, Shape
from transformers import Phi3Config, PretrainedConfig


def make(shape: Shape) -> dict[str, PretrainedConfig]:
    def longrope(dimensions: int) -> dict[str, object]:
        return {
            "rope_type": "longrope",
            "rope_theta": 10_000.0,
            "short_factor": [1.0 + i / 10 for i in range(dimensions // 2)],
            "long_factor": [1.0 + i for i in range(dimensions // 2)],
        }

    context = {"max_position_embeddings": 256, "original_max_position_embeddings": 40}
    return {
        "rand-phi3": Phi3Config(**shape, sliding_window=16),
        "rand-phi3-longrope": Phi3Config(
            **shape | context, rope_parameters=longrope(16), tie_word_embeddings=True
        ),
        "rand-phi4-mini": Phi3Config(
            **shape | context,
            rope_parameters=longrope(12) | {"partial_rotary_factor": 0.75},
        ),
    }


def add_fields(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    rope = config.rope_parameters
    size = config.hidden_size // config.num_attention_heads
    writer.add_rope_dimension_count(int(size * rope.get("partial_rotary_factor", 1.0)))
    if config.sliding_window:
        writer.add_sliding_window(config.sliding_window)
    if rope["rope_type"] == "longrope":
        original = config.original_max_position_embeddings
        factor = config.max_position_embeddings / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(factor) / np.log(original))))
        for kind in ("long", "short"):
            factors = np.array(rope[f"{kind}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{kind}.weight", factors)


CASE = FamilyCase(make=make, arch=gguf.MODEL_ARCH.PHI3, add_fields=add_fields)
