"""Granite."""

import gguf
from family_case import FamilyCase, Shape, interleaved_heads
from transformers import GraniteConfig, PretrainedConfig


def make(shape: Shape) -> dict[str, PretrainedConfig]:
    factors = {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.3,
        "attention_multiplier": 0.4,
        "logits_scaling": 1.7,
    }
    return {
        "rand-granite": GraniteConfig(**shape, **factors, tie_word_embeddings=True),
        "rand-granite-biased": GraniteConfig(
            **shape, **factors, attention_bias=True, mlp_bias=True, tie_word_embeddings=False
        ),
    }


def add_fields(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_logit_scale(config.logits_scaling)


CASE = FamilyCase(
    make=make, arch=gguf.MODEL_ARCH.GRANITE, add_fields=add_fields, convert=interleaved_heads
)
