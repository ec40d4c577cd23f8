"""What the families' config.json files have in common: sizes, window patterns, activations.

Defaults are those of `transformers`, since a config.json may leave them out. What transformers
computes and we do not is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from model.config import Activation, Dtype
from model.families.fields import MAX_LAYERS, Fields
from model.families.rotary_fields import hf_rotary
from model.rotary import RotaryConfig

FULL, SLIDING = "full_attention", "sliding_attention"

ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


class HFShape(TypedDict):
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
    weights_dtype: Dtype


def hf_dtype(fields: Fields) -> Dtype:
    """Read what the file suggests for its matrices."""
    name = "dtype" if "dtype" in fields else "torch_dtype"
    known = ("float32", "bfloat16", "float16")
    return "float32" if fields.text(name, "bfloat16", known=known) == "float32" else "bfloat16"


def hf_shape(fields: Fields) -> HFShape:
    """Read the sizes."""
    hidden_size, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    if "head_dim" not in fields and hidden_size % num_heads:
        raise fields.error("hidden_size", hidden_size, f"a multiple of {num_heads} heads")
    return HFShape(
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers", maximum=MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads),
        head_dim=fields.integer("head_dim", max(1, hidden_size // num_heads)),
        max_position_embeddings=fields.integer("max_position_embeddings"),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        weights_dtype=hf_dtype(fields),
    )


def hf_activation(fields: Fields, name: str, default: str) -> Activation:
    """Read the activation of the MLP from the field of that name."""
    return ACTIVATIONS[fields.text(name, default, known=ACTIVATIONS)]


def hf_layer_types(fields: Fields, default: list[str]) -> list[str]:
    """Read which layers have a window, by default those of the family."""
    types = fields.strings("layer_types", length=len(default)) or default
    for kind in types:
        if kind not in (FULL, SLIDING):
            raise fields.error("layer_types", kind, f"{FULL} or {SLIDING} for each layer")
    return types


def hf_uniform_layer_types(fields: Fields, kind: str, *, num_layers: int) -> list[str]:
    """Read the types of layers that a family has all of one kind."""
    default = [kind] * num_layers
    types = hf_layer_types(fields, default)
    if types != default:
        raise fields.error("layer_types", types, f"{kind} in every layer")
    return types


def hf_qwen_layer_types(fields: Fields, *, num_layers: int) -> list[str]:
    """Read the types of the qwens' layers, which have windows only if a switch says so."""
    if not fields.flag("use_sliding_window", default=False) or "sliding_window" not in fields:
        types = hf_layer_types(fields, [FULL] * num_layers)
        if SLIDING in types:
            raise fields.error("layer_types", types, "no window without use_sliding_window")
        return types
    first = fields.integer("max_window_layers", 28, minimum=0)
    return hf_layer_types(fields, [FULL if i < first else SLIDING for i in range(num_layers)])


def hf_windows(fields: Fields, types: list[str]) -> tuple[int | None, ...]:
    """Read the length of the window for the layers that have one."""
    if SLIDING not in types:
        return (None,) * len(types)
    window = fields.integer("sliding_window")
    return tuple(window if kind == SLIDING else None for kind in types)


def hf_rotaries(
    fields: Fields, types: list[str], *, partial: bool = False
) -> tuple[RotaryConfig, ...]:
    """Read how each layer turns queries and keys: all alike, or by its type."""
    nested = fields.within("rope_parameters")
    if not any(kind in nested for kind in types):
        return (hf_rotary(fields, partial=partial),) * len(types)
    by_type = {
        kind: hf_rotary(fields, parameters=nested.within(kind), partial=partial)
        for kind in set(types)
    }
    return tuple(by_type[kind] for kind in types)
