"""ModelConfig: what a decoder-only Transformer is made of, whatever file it came from.

Plain data, checked only for what one field says about another. families/ fills it from fields.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from model.errors import ConfigError
from model.rotary import RotaryConfig

Activation = Literal["silu", "gelu", "gelu_tanh", "clamped_swiglu"]
Dtype = Literal["float32", "bfloat16"]

NormPlacement = Literal["pre", "post", "sandwich"]

LARGEST_TABLE = 2**28
"""Bound of positions x head size: a gigabyte of rotary tables, two million positions of 128."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertsConfig:
    """A mixture of experts: many MLPs, of which each token passes a few (arXiv:1701.06538)."""

    count: int
    per_token: int
    """How many a token passes: those its router scores highest."""
    intermediate_size: int
    """Width of the hidden layer of each."""
    renormalize: bool = True
    """Whether the softmax is taken over the chosen ones alone, not over all."""
    router_bias: bool = False
    bias: bool = False
    """Whether the matrices of the experts have biases."""
    shared_intermediate_size: int | None = None
    """Width of an MLP that every token passes, scaled by a sigmoid gate of its own."""

    def __post_init__(self) -> None:
        """Check what one field says about another."""
        if self.per_token > self.count:
            raise ConfigError(
                f"The number of experts per token is {self.per_token}; "
                f"expected at most the number of experts, {self.count}."
            )


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
    qk_norm: Literal["head", "row"] | None = None
    """What is normalised of queries and keys before they are turned: each head, or all at once."""
    norm_placement: NormPlacement = "pre"
    """Whether the inputs of attention and MLP are normalised, what they add, or both."""
    attention_cap: float | None = None
    """Soft cap of the attention scores: cap x tanh(score / cap)."""
    attention_sinks: bool = False
    """Whether each head has a score that takes part in the softmax and adds no value."""
    experts: ExpertsConfig | None = None
    """What the MLP of a sparse layer is made of."""
    sparse_layers: tuple[bool, ...] = ()
    """For each layer whether its MLP is a mixture of experts; empty is none."""
    learned_positions: bool = False
    """Whether a trained vector for each position is added to the embeddings."""
    tie_word_embeddings: bool = False
    """Whether the embedding matrix also computes the logits; then there is no lm_head."""
    embedding_scale: float = 1.0
    """Factor of the token embeddings as they enter the first layer."""
    residual_scale: float = 1.0
    """Factor of what attention and MLP add."""
    logit_scale: float = 1.0
    """Factor of the logits."""
    logit_cap: float | None = None
    """Soft cap of the logits, after their factor."""
    weights_dtype: Dtype = "bfloat16"
    """What the file suggests for its matrices; float16 files are read as bfloat16."""

    def __post_init__(self) -> None:
        """Check what one field says about another."""
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"The number of attention heads is {self.num_heads}; "
                f"expected a multiple of the {self.num_kv_heads} key/value heads."
            )
        for rotary in self.rotaries:
            if rotary is not None:
                rotary.check(self.head_dim)
        if self.max_position_embeddings * self.head_dim > LARGEST_TABLE:
            raise ConfigError(
                f"max_position_embeddings is {self.max_position_embeddings}; expected at most "
                f"{LARGEST_TABLE // self.head_dim} with a head size of {self.head_dim}."
            )
        assert len(self.windows) == len(self.rotaries) == self.num_layers
        assert len(self.sparse_layers) in (0, self.num_layers)
        assert self.experts is not None or not any(self.sparse_layers)

    def is_sparse(self, layer: int) -> bool:
        """Return whether a layer's MLP is a mixture of experts."""
        return bool(self.sparse_layers) and self.sparse_layers[layer]

    def limited_to(self, context: int) -> ModelConfig:
        """Return the same model for sequences of at most that many tokens.

        Rotary factors that were trained for short sequences are used where they suffice.
        """
        rotaries = tuple(rotary and rotary.limited_to(context) for rotary in self.rotaries)
        return replace(self, rotaries=rotaries)
