"""Gemma 2."""

from collections.abc import Iterator

import gguf
from family_case import Array, FamilyCase, Shape
from transformers import Gemma2Config, PretrainedConfig


def make(shape: Shape) -> dict[str, PretrainedConfig]:
    return {
        "rand-gemma2": Gemma2Config(
            **shape,
            head_dim=32,
            sliding_window=16,
            query_pre_attn_scalar=20,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=3.0,
            tie_word_embeddings=True,
        ),
        "rand-gemma2-uncapped": Gemma2Config(
            **shape,
            head_dim=20,
            query_pre_attn_scalar=20,
            attn_logit_softcapping=None,
            final_logit_softcapping=None,
            tie_word_embeddings=False,
        ),
    }


def add_fields(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_sliding_window(config.sliding_window)
    writer.add_attn_logit_softcapping(config.attn_logit_softcapping or 0.0)
    writer.add_final_logit_softcapping(config.final_logit_softcapping or 0.0)
    writer.add_attention_scale(config.query_pre_attn_scalar**-0.5)


def convert(name: str, weight: Array, config: PretrainedConfig) -> Iterator[tuple[str, Array]]:
    """Store norms as what they multiply by."""
    del config
    yield name, weight + 1 if name.endswith("norm.weight") else weight


CASE = FamilyCase(
    make=make,
    arch=gguf.MODEL_ARCH.GEMMA2,
    add_fields=add_fields,
    convert=convert,
    has_twin=lambda config: config.tie_word_embeddings,  # the format has no output matrix
)
