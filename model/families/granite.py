"""Granite: llama with factors for embeddings, residuals, attention scores and logits."""

from __future__ import annotations

from dataclasses import replace

from model.config import ModelConfig
from model.families.fields import Fields
from model.families.llama import Llama
from model.families.tensor_parts import GGUFTensors


class Granite(Llama):
    """Granite 3 and 4 without experts or state-space layers."""

    name = "granite"
    gguf_name = "granite"

    def read_hf(self, fields: Fields) -> ModelConfig:
        """Read a config.json."""
        return replace(
            super().read_hf(fields),
            embedding_scale=fields.number("embedding_multiplier", 1.0),
            residual_scale=fields.number("residual_multiplier", 1.0),
            attention_scale=fields.number("attention_multiplier", 1.0),
            logit_scale=1.0 / fields.number("logits_scaling", 1.0),
        )

    def read_gguf(self, fields: Fields, tensors: GGUFTensors) -> ModelConfig:
        """Read GGUF metadata; a factor of 0 is none."""
        config = super().read_gguf(fields, tensors)
        default = config.head_dim**-0.5
        return replace(
            config,
            embedding_scale=fields.number("embedding_scale", 1.0, minimum=0.0) or 1.0,
            residual_scale=fields.number("residual_scale", 1.0, minimum=0.0) or 1.0,
            attention_scale=fields.number("attention.scale", default, minimum=0.0) or default,
            logit_scale=1.0 / (fields.number("logit_scale", 1.0, minimum=0.0) or 1.0),
        )


FAMILY = Granite()
