"""ModelConfig: what a decoder-only Transformer is made of, whatever file it came from.

Plain data, checked only for what one field says about another. families/ fills it from fields.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from model.errors import ConfigError
from model.rotary import RotaryConfig

Activation = Literal["silu", "gelu", "gelu_tanh"]
Dtype = Literal["float32", "bfloat16"]

LARGEST_TABLE = 2**28
"""Bound of positions x head size: a gigabyte of rotary tables, two million positions of 128."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The shape of a model and the choices its family made; equal for equal models."""

    architecture: str
    """The family's name, as in families/: llama, qwen3, gemma3_text and so on."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    """Width of the hidden layer of the MLP."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    """Key/value heads, each shared by num_heads / num_kv_heads query heads."""
    head_dim: int
    max_position_embeddings: int
    """Longest context; no position at or beyond it may be asked for."""
    windows: tuple[int | None, ...]
    """For each layer how many of the last tokens a query sees, its own included; None is all."""
    rotaries: tuple[RotaryConfig | None, ...]
    """For each layer how queries and keys are turned; None is not at all."""
    attention_scale: float
    """Factor of the attention scores."""
    norm: Literal["rms", "layer"] = "rms"
    norm_eps: float = 1e-6
    activation: Activation = "silu"
    gated_mlp: bool = True
    """Whether the MLP multiplies its hidden layer by an activated gate."""
    qkv_bias: bool = False
    output_bias: bool = False
    """Whether o_proj has a bias."""
    mlp_bias: bool = False
    qk_norm: bool = False
    """Whether each query and key head is normalised before it is turned."""
    sandwich_norms: bool = False
    """Whether the outputs of attention and MLP are normalised too, before they are added."""
    learned_positions: bool = False
    """Whether a trained vector for each position is added to the embeddings."""
    tie_word_embeddings: bool = False
    """Whether the embedding matrix also computes the logits; then there is no lm_head."""
    embedding_scale: float = 1.0
    """Factor of the token embeddings as they enter the first layer."""
    weights_dtype: Dtype = "bfloat16"
    """What the file suggests for its matrices; float16 files are read as bfloat16."""

    def __post_init__(self) -> None:
        """Check what one field says about another."""
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"The number of attention heads is {self.num_heads}; "
                f"expected a multiple of the {self.num_kv_heads} key/value heads."
            )
        if self.head_dim % 2 and any(self.rotaries):
            raise ConfigError(f"head_dim is {self.head_dim}; expected an even number for rotary.")
        if self.max_position_embeddings * self.head_dim > LARGEST_TABLE:
            raise ConfigError(
                f"max_position_embeddings is {self.max_position_embeddings}; expected at most "
                f"{LARGEST_TABLE // self.head_dim} with a head size of {self.head_dim}."
            )
        for rotary in self.rotaries:
            factors = rotary.frequency_factors if rotary else ()
            if factors and len(factors) != self.head_dim // 2:
                raise ConfigError(
                    f"rope_freqs.weight has {len(factors)} values; "
                    f"expected {self.head_dim // 2}, half the head size."
                )
            if not all(0 < factor < math.inf for factor in factors):
                raise ConfigError("rope_freqs.weight has a value that is not a number above 0.")
        assert len(self.windows) == len(self.rotaries) == self.num_layers
