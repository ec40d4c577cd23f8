"""What the families' GGUF metadata have in common: sizes and window patterns.

Keys, defaults and rules are those of llama.cpp's hyperparameter reader and of the `gguf` package
(gguf.constants.Keys).
"""

from __future__ import annotations

from collections.abc import Sized
from typing import TypedDict

from model.families.fields import MAX_LAYERS, Fields

ROPE_FACTORS = "rope_freqs.weight"


class GGUFShape(TypedDict):
    """The arguments of ModelConfig that every rotary family reads alike."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    norm_eps: float


def gguf_shape(fields: Fields) -> GGUFShape:
    """Read the sizes."""
    hidden_size = fields.integer("embedding_length")
    num_heads = fields.integer("attention.head_count")
    if "attention.key_length" not in fields and hidden_size % num_heads:
        raise fields.error("embedding_length", hidden_size, f"a multiple of {num_heads} heads")
    head_dim = fields.integer("attention.key_length", hidden_size // num_heads)
    fields.refuse("attention.value_length", neutral=(head_dim,))
    return GGUFShape(
        vocab_size=gguf_vocab_size(fields),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("feed_forward_length"),
        num_layers=fields.integer("block_count", maximum=MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=_kv_heads(fields, num_heads),
        head_dim=head_dim,
        max_position_embeddings=fields.integer("context_length"),
        norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
    )


def gguf_vocab_size(fields: Fields) -> int:
    """Count the vocabulary that the file carries."""
    tokens = fields.values.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Sized) and len(tokens):
        return len(tokens)
    return fields.integer("vocab_size")


def gguf_window(fields: Fields) -> int | None:
    """Read the length of the window; 0 and absence are none."""
    return fields.integer("attention.sliding_window", 0, minimum=0) or None


def gguf_window_pattern(fields: Fields, *, num_layers: int, every: int) -> list[bool]:
    """Return for each layer whether it is local; by default all but one in `every`."""
    key = "attention.sliding_window_pattern"
    value = fields.get(key)
    if isinstance(value, list):
        if len(value) != num_layers:
            raise fields.error(key, f"{len(value)} entries", f"{num_layers}, one for each layer")
        return [bool(item) for item in value]
    every = fields.integer(key, every)
    return [i % every != 0 for i in range(1, num_layers + 1)]


def _kv_heads(fields: Fields, num_heads: int) -> int:
    """Read a key that may hold one number or one for each layer, all equal for us."""
    value = fields.get("attention.head_count_kv")
    if isinstance(value, list) and value and value.count(value[0]) == len(value):
        fields = Fields({"attention.head_count_kv": value[0]}, path=fields.prefix)
    return fields.integer("attention.head_count_kv", num_heads)
