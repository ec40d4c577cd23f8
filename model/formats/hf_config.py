"""What the fields of a config.json mean, family by family; ModelConfig.from_hf is the way in.

Defaults are those of `transformers`, since a config.json may leave them out. What transformers
computes and we do not is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, TypedDict

from model.formats.fields import MAX_LAYERS, Fields
from model.rotary import RotaryConfig

if TYPE_CHECKING:
    from model.config import Activation, Dtype, ModelConfig

FULL, SLIDING = "full_attention", "sliding_attention"

ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}

DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "llama": {},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"num_key_value_heads": 32, "sliding_window": 4096},
    "qwen3": {"num_key_value_heads": 32, "sliding_window": 4096, "head_dim": 128},
    "gemma3_text": {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
    },
}
"""Where absence and null differ, and what gemma3 files on the hub really leave out."""


class HfFamily(Protocol):
    """How one family's fields become the arguments of ModelConfig."""

    def __call__(self, fields: Fields, make: type[ModelConfig]) -> ModelConfig:
        """Read the fields and make the configuration."""


class _Shape(TypedDict):
    """The fields every rotary family reads alike."""

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


def _dtype(fields: Fields) -> Dtype:
    name = "dtype" if "dtype" in fields else "torch_dtype"
    known = ("float32", "bfloat16", "float16")
    return "float32" if fields.text(name, "bfloat16", known=known) == "float32" else "bfloat16"


def _shape(fields: Fields) -> _Shape:
    hidden_size, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    if "head_dim" not in fields and hidden_size % num_heads:
        raise fields.error("hidden_size", hidden_size, f"a multiple of {num_heads} heads")
    return _Shape(
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers", maximum=MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads),
        head_dim=fields.integer("head_dim", max(1, hidden_size // num_heads)),
        max_position_embeddings=fields.integer("max_position_embeddings"),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        weights_dtype=_dtype(fields),
    )


def _layer_types(fields: Fields, default: list[str]) -> list[str]:
    types = fields.strings("layer_types", length=len(default)) or default
    for kind in types:
        if kind not in (FULL, SLIDING):
            raise fields.error("layer_types", kind, f"{FULL} or {SLIDING} for each layer")
    return types


def _windows(fields: Fields, types: list[str]) -> tuple[int | None, ...]:
    if SLIDING not in types:
        return (None,) * len(types)
    window = fields.integer("sliding_window")
    return tuple(window if kind == SLIDING else None for kind in types)


def _llama(fields: Fields, make: type[ModelConfig]) -> ModelConfig:
    """Read llama, mistral, qwen2 and qwen3: one skeleton with a few switches."""
    architecture = fields.text("model_type")
    fields = fields.over(DEFAULTS[architecture])
    shape = _shape(fields)
    num_layers = shape["num_layers"]
    types = _llama_layer_types(fields, architecture, num_layers=num_layers)
    bias = architecture != "mistral" and fields.flag("attention_bias", default=False)
    return make(
        **shape,
        architecture=architecture,
        windows=_windows(fields, types),
        rotaries=_llama_rotaries(fields, types),
        attention_scale=shape["head_dim"] ** -0.5,
        activation=ACTIVATIONS[fields.text("hidden_act", "silu", known=ACTIVATIONS)],
        qkv_bias=architecture == "qwen2" or bias,
        output_bias=architecture != "qwen2" and bias,
        mlp_bias=architecture == "llama" and fields.flag("mlp_bias", default=False),
        qk_norm=architecture == "qwen3",
        tie_word_embeddings=fields.flag("tie_word_embeddings", default=False),
    )


def _llama_layer_types(fields: Fields, architecture: str, *, num_layers: int) -> list[str]:
    if architecture in ("llama", "mistral"):
        windowed = architecture == "mistral" and "sliding_window" in fields
        default = [SLIDING if windowed else FULL] * num_layers
        types = _layer_types(fields, default)
        if types != default:
            raise fields.error("layer_types", types, f"{default[0]} in every layer")
        return types
    if not fields.flag("use_sliding_window", default=False) or "sliding_window" not in fields:
        types = _layer_types(fields, [FULL] * num_layers)
        if SLIDING in types:
            raise fields.error("layer_types", types, "no window without use_sliding_window")
        return types
    first = fields.integer("max_window_layers", 28, minimum=0)
    return _layer_types(fields, [FULL if i < first else SLIDING for i in range(num_layers)])


def _llama_rotaries(fields: Fields, types: list[str]) -> tuple[RotaryConfig, ...]:
    nested = fields.within("rope_parameters")
    if not any(kind in nested for kind in types):
        return (RotaryConfig.from_hf(fields),) * len(types)
    by_type = {
        kind: RotaryConfig.from_hf(fields, parameters=nested.within(kind)) for kind in set(types)
    }
    return tuple(by_type[kind] for kind in types)


def _gemma3(fields: Fields, make: type[ModelConfig]) -> ModelConfig:
    fields = fields.over(DEFAULTS["gemma3_text"])
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        fields.refuse(name, neutral=())
    fields.refuse("use_bidirectional_attention", neutral=(False,))
    shape = _shape(fields)
    pattern = "sliding_window_pattern"
    pattern = pattern if pattern in fields else "_sliding_window_pattern"
    every = fields.integer(pattern, 6)
    types = _layer_types(
        fields, [SLIDING if i % every else FULL for i in range(1, shape["num_layers"] + 1)]
    )
    bias = fields.flag("attention_bias", default=False)
    by_type = _gemma3_rotaries(fields)
    return make(
        **shape,
        architecture="gemma3_text",
        windows=_windows(fields, types),
        rotaries=tuple(by_type[kind] for kind in types),
        attention_scale=fields.number("query_pre_attn_scalar") ** -0.5,
        activation=ACTIVATIONS[
            fields.text("hidden_activation", "gelu_pytorch_tanh", known=ACTIVATIONS)
        ],
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
        sandwich_norms=True,
        tie_word_embeddings=fields.flag("tie_word_embeddings", default=True),
        embedding_scale=shape["hidden_size"] ** 0.5,
    )


def _gemma3_rotaries(fields: Fields) -> dict[str, RotaryConfig]:
    """Read the two bases; scaling given the old way stretches the global layers only."""
    parameters = fields.within("rope_parameters")
    if parameters.values and not any(kind in parameters for kind in (FULL, SLIDING)):
        raise fields.error("rope_parameters", parameters.values, f"entries {FULL} and {SLIDING}")
    scaling = fields.within("rope_scaling")
    return {
        FULL: RotaryConfig.from_hf(
            fields,
            parameters=scaling if scaling.values else parameters.within(FULL),
            theta=parameters.within(FULL).number(
                "rope_theta", fields.number("rope_theta", 1_000_000.0)
            ),
        ),
        SLIDING: RotaryConfig.from_hf(
            fields,
            parameters=parameters.within(SLIDING),
            theta=fields.number("rope_local_base_freq", 10_000.0),
        ),
    }


def _gpt2(fields: Fields, make: type[ModelConfig]) -> ModelConfig:
    for name in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        fields.refuse(name, neutral=(False,))
    hidden_size, num_heads = fields.integer("n_embd", 768), fields.integer("n_head", 12)
    if hidden_size % num_heads:
        raise fields.error("n_embd", hidden_size, f"a multiple of n_head, {num_heads}")
    num_layers = fields.integer("n_layer", 12, maximum=MAX_LAYERS)
    head_dim = hidden_size // num_heads
    scaled = fields.flag("scale_attn_weights", default=True)
    return make(
        vocab_size=fields.integer("vocab_size", 50257),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("n_inner", 4 * hidden_size),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        max_position_embeddings=fields.integer("n_positions", 1024),
        attention_scale=head_dim**-0.5 if scaled else 1.0,
        norm_eps=fields.number("layer_norm_epsilon", 1e-5),
        activation=ACTIVATIONS[fields.text("activation_function", "gelu_new", known=ACTIVATIONS)],
        tie_word_embeddings=fields.flag("tie_word_embeddings", default=True),
        weights_dtype=_dtype(fields),
        architecture="gpt2",
        windows=(None,) * num_layers,
        rotaries=(None,) * num_layers,
        norm="layer",
        gated_mlp=False,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        learned_positions=True,
    )


HF_FAMILIES: Mapping[str, HfFamily] = {
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _llama,
    "qwen3": _llama,
    "gemma3_text": _gemma3,
    "gpt2": _gpt2,
}
