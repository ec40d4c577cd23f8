"""What the metadata of a GGUF file mean, family by family; ModelConfig.from_gguf is the way in.

Keys, defaults and rules are those of llama.cpp's hyperparameter reader and of the `gguf` package
(gguf.constants.Keys). All families but gpt2 are one skeleton with a few switches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from model.formats.fields import MAX_LAYERS, Fields
from model.rotary import RotaryConfig

if TYPE_CHECKING:
    from model.config import ModelConfig


class GgufFamily(Protocol):
    """How one family's metadata become a ModelConfig, apart from what the tensors decide."""

    def __call__(
        self, fields: Fields, make: type[ModelConfig], *, frequency_factors: tuple[float, ...]
    ) -> ModelConfig:
        """Read the fields, which stand below the family's prefix."""


def _vocab_size(fields: Fields) -> int:
    tokens = fields.values.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Sized) and len(tokens):
        return len(tokens)
    return fields.integer("vocab_size")


def _kv_heads(fields: Fields, num_heads: int) -> int:
    """Read a key that may hold one number or one for each layer, all equal for us."""
    value = fields.get("attention.head_count_kv")
    if isinstance(value, list) and value and value.count(value[0]) == len(value):
        fields = Fields({"attention.head_count_kv": value[0]}, path=fields.prefix)
    return fields.integer("attention.head_count_kv", num_heads)


def _skeleton(
    fields: Fields, make: type[ModelConfig], *, frequency_factors: tuple[float, ...]
) -> ModelConfig:
    """Read what llama, qwen2, qwen3 and gemma3 share; llama's answers where they differ."""
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        fields.refuse(name, neutral=(0.0,))
    fields.refuse("expert_count", neutral=(0,))
    hidden_size = fields.integer("embedding_length")
    num_heads = fields.integer("attention.head_count")
    if "attention.key_length" not in fields and hidden_size % num_heads:
        raise fields.error("embedding_length", hidden_size, f"a multiple of {num_heads} heads")
    head_dim = fields.integer("attention.key_length", hidden_size // num_heads)
    fields.refuse("attention.value_length", neutral=(head_dim,))
    fields.refuse("rope.dimension_count", neutral=(head_dim,))
    num_layers = fields.integer("block_count", maximum=MAX_LAYERS)
    rotary = RotaryConfig.from_gguf(fields, frequency_factors=frequency_factors)
    return make(
        architecture=fields.prefix.rstrip("."),
        vocab_size=_vocab_size(fields),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_kv_heads(fields, num_heads),
        head_dim=head_dim,
        max_position_embeddings=fields.integer("context_length"),
        windows=(None,) * num_layers,
        rotaries=(rotary,) * num_layers,
        attention_scale=fields.number("attention.scale", head_dim**-0.5),
        norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
    )


def _llama(
    fields: Fields, make: type[ModelConfig], *, frequency_factors: tuple[float, ...]
) -> ModelConfig:
    """Read llama, and the mistral models that go by the same name: their window is everywhere."""
    config = _skeleton(fields, make, frequency_factors=frequency_factors)
    window = fields.integer("attention.sliding_window", 0, minimum=0) or None
    return replace(config, windows=(window,) * config.num_layers)


def _qwen(
    fields: Fields, make: type[ModelConfig], *, frequency_factors: tuple[float, ...]
) -> ModelConfig:
    # Which layers of a qwen have the window cannot be said in a GGUF.
    fields.refuse("attention.sliding_window", neutral=(0,))
    config = _skeleton(fields, make, frequency_factors=frequency_factors)
    is_qwen2 = config.architecture == "qwen2"
    return replace(config, qkv_bias=is_qwen2, qk_norm=not is_qwen2)


def _gemma3(
    fields: Fields, make: type[ModelConfig], *, frequency_factors: tuple[float, ...]
) -> ModelConfig:
    config = _skeleton(fields, make, frequency_factors=frequency_factors)
    num_layers = config.num_layers
    scale = config.attention_scale
    if num_layers == 62:
        # The 27B model scales by its hidden size per head, and its files do not say so.
        default = (config.hidden_size // config.num_heads) ** -0.5
        scale = fields.number("attention.scale", default)
    window = fields.integer("attention.sliding_window", 0, minimum=0) or None
    local = RotaryConfig(theta=fields.number("rope.freq_base_swa", 10_000.0))
    is_local = [window is not None and flag for flag in _gemma3_pattern(fields, num_layers)]
    return replace(
        config,
        architecture="gemma3_text",
        windows=tuple(window if flag else None for flag in is_local),
        rotaries=tuple(
            local if flag else rotary
            for flag, rotary in zip(is_local, config.rotaries, strict=True)
        ),
        attention_scale=scale,
        activation="gelu_tanh",
        qk_norm=True,
        sandwich_norms=True,
        embedding_scale=config.hidden_size**0.5,
    )


def _gemma3_pattern(fields: Fields, num_layers: int) -> list[bool]:
    """Return for each layer whether it is local; by default all but every sixth."""
    key = "attention.sliding_window_pattern"
    value = fields.get(key)
    if isinstance(value, list):
        if len(value) != num_layers:
            raise fields.error(key, f"{len(value)} entries", f"{num_layers}, one for each layer")
        return [bool(item) for item in value]
    every = fields.integer(key, 6)
    return [i % every != 0 for i in range(1, num_layers + 1)]


def _gpt2(
    fields: Fields, make: type[ModelConfig], *, frequency_factors: tuple[float, ...]
) -> ModelConfig:
    assert not frequency_factors
    hidden_size = fields.integer("embedding_length")
    num_heads = fields.integer("attention.head_count")
    if hidden_size % num_heads:
        raise fields.error("embedding_length", hidden_size, f"a multiple of {num_heads} heads")
    num_layers = fields.integer("block_count", maximum=MAX_LAYERS)
    return make(
        architecture="gpt2",
        vocab_size=_vocab_size(fields),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=hidden_size // num_heads,
        max_position_embeddings=fields.integer("context_length"),
        windows=(None,) * num_layers,
        rotaries=(None,) * num_layers,
        attention_scale=(hidden_size // num_heads) ** -0.5,
        norm="layer",
        norm_eps=fields.number("attention.layer_norm_epsilon"),
        activation="gelu_tanh",
        gated_mlp=False,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        learned_positions=True,
    )


GGUF_FAMILIES: Mapping[str, GgufFamily] = {
    "llama": _llama,
    "qwen2": _qwen,
    "qwen3": _qwen,
    "gemma3": _gemma3,
    "gpt2": _gpt2,
}
