"""How RotaryConfig is read from the fields of config.json and of GGUF metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from model.families.fields import Fields
from model.rotary import SCALINGS, RotaryConfig

HF_DEFAULT_THETA = 10_000.0
GGUF_SCALINGS = ("none", "linear", "yarn")


def hf_rotary(
    config: Fields,
    *,
    parameters: Fields | None = None,
    theta: float | None = None,
    partial: bool = False,
) -> RotaryConfig:
    """Read the rotary fields of a config.json.

    Args:
        config: The whole configuration.
        parameters: Where the scaling stands; by default `rope_scaling`, else
            `rope_parameters`.
        theta: The base when `parameters` has none; by default `rope_theta`.
        partial: Whether the family may turn only some dimensions of each head.

    Raises:
        ConfigError: The scaling is unknown or incomplete.
    """
    if parameters is None:
        old, new = config.within("rope_scaling"), config.within("rope_parameters")
        parameters = old if old.values else new
    if not partial:
        for fields in (config, parameters):
            fields.refuse("partial_rotary_factor", neutral=(1, 1.0))
    if theta is None:
        theta = config.number("rope_theta", HF_DEFAULT_THETA)
    base = RotaryConfig(
        theta=parameters.number("rope_theta", theta), dimensions=_hf_dimensions(config, parameters)
    )
    spelling = "rope_type" if "rope_type" in parameters else "type"
    scaling = parameters.text(spelling, "default", known=(*SCALINGS, "su"))
    scaling = "longrope" if scaling == "su" else scaling
    if scaling == "default":
        return base
    base = replace(base, scaling=scaling)
    if scaling == "yarn":
        return _yarn_from_hf(config, parameters, base)
    if scaling == "longrope":
        return _longrope_from_hf(config, parameters, base)
    base = replace(base, factor=parameters.number("factor"))
    return _llama3_from_hf(config, parameters, base) if scaling == "llama3" else base


def gguf_rotary(fields: Fields, *, frequency_factors: tuple[float, ...] = ()) -> RotaryConfig:
    """Read the rotary fields of one architecture's GGUF metadata.

    Args:
        fields: The metadata below the architecture's prefix.
        frequency_factors: The values of the tensor rope_freqs.weight, if the file has it.

    Raises:
        ConfigError: The scaling is unknown or incomplete.
    """
    base = RotaryConfig(
        theta=fields.number("rope.freq_base", HF_DEFAULT_THETA),
        attention_factor=fields.number("rope.scaling.attn_factor", 1.0),
        frequency_factors=frequency_factors,
    )
    scaling = fields.text("rope.scaling.type", "linear", known=GGUF_SCALINGS)
    for name, neutral in (
        ("rope.scaling.alpha", 0.0),
        ("rope.scaling.yarn_log_multiplier", 0.0),
        ("rope.scaling.yarn_ext_factor", 1.0),
        ("rope.scaling.yarn_attn_factor", 1.0),
    ):
        fields.refuse(name, neutral=(neutral,))
    # Files older than rope.scaling.factor say rope.scale_linear.
    factor = fields.number("rope.scale_linear", 1.0)
    factor = fields.number("rope.scaling.factor", factor, minimum=0.0) or 1.0
    if scaling == "none" or factor == 1.0:
        return base
    if scaling == "linear":
        return replace(base, scaling="linear", factor=factor)
    return replace(
        base,
        scaling="yarn",
        factor=factor,
        original_max_position_embeddings=fields.integer(
            "rope.scaling.original_context_length", fields.integer("context_length")
        ),
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=base.attention_factor * _yarn_magnitude(factor),
    )


def _original_context(config: Fields, parameters: Fields) -> int:
    default = config.integer("max_position_embeddings")
    default = parameters.integer("original_max_position_embeddings", default)
    return config.integer("original_max_position_embeddings", default)


def _hf_dimensions(config: Fields, parameters: Fields) -> int | None:
    """Read how much of each head is turned; None is all."""
    name = "partial_rotary_factor"
    share = parameters.number(name, config.number(name, 1.0))
    if share > 1:
        raise parameters.error(name, share, "at most 1")
    if share == 1:
        return None
    default = config.integer("hidden_size") // config.integer("num_attention_heads")
    return int(config.integer("head_dim", default) * share)


def _longrope_from_hf(config: Fields, parameters: Fields, base: RotaryConfig) -> RotaryConfig:
    original, context = _original_context(config, parameters), _context(config)
    magnitude = _longrope_magnitude(parameters.number("factor", context / original), original)
    rotary = replace(
        base,
        original_max_position_embeddings=original,
        frequency_factors=parameters.numbers("long_factor"),
        short_factors=parameters.numbers("short_factor"),
        attention_factor=parameters.number("attention_factor", magnitude, minimum=0.0),
    )
    return rotary.limited_to(context)


def _longrope_magnitude(factor: float, original: int) -> float:
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))


def with_gguf_dimensions(fields: Fields, rotary: RotaryConfig) -> RotaryConfig:
    """Add how many dimensions of each head are turned, if a GGUF file says so."""
    name = "rope.dimension_count"
    return replace(rotary, dimensions=fields.integer(name)) if name in fields else rotary


def with_longrope_vectors(
    rotary: RotaryConfig, fields: Fields, vectors: Mapping[str, tuple[float, ...]]
) -> RotaryConfig:
    """Add the long and short factors that a GGUF file has as tensors, if it has them."""
    long, short = (vectors.get(f"rope_factors_{kind}.weight", ()) for kind in ("long", "short"))
    if not long or not short:
        return rotary
    context = fields.integer("context_length")
    return replace(
        rotary,
        scaling="longrope",
        original_max_position_embeddings=fields.integer(
            "rope.scaling.original_context_length", context
        ),
        frequency_factors=long,
        short_factors=short,
    ).limited_to(context)


def _context(config: Fields) -> int:
    return config.integer("max_position_embeddings")


def _llama3_from_hf(config: Fields, parameters: Fields, base: RotaryConfig) -> RotaryConfig:
    low = parameters.number("low_freq_factor")
    high = parameters.number("high_freq_factor")
    if high <= low:
        raise parameters.error("high_freq_factor", high, f"above low_freq_factor, {low}")
    return replace(
        base,
        original_max_position_embeddings=_original_context(config, parameters),
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn_from_hf(config: Fields, parameters: Fields, base: RotaryConfig) -> RotaryConfig:
    original = _original_context(config, parameters)
    factor = parameters.number("factor", config.integer("max_position_embeddings") / original)
    mscale = parameters.number("mscale", 0.0, minimum=0.0)
    mscale_all_dim = parameters.number("mscale_all_dim", 0.0, minimum=0.0)
    magnitude = _yarn_magnitude(factor)
    if mscale and mscale_all_dim:
        magnitude = _yarn_magnitude(factor, mscale) / _yarn_magnitude(factor, mscale_all_dim)
    return replace(
        base,
        factor=factor,
        original_max_position_embeddings=original,
        beta_fast=parameters.number("beta_fast", 32.0),
        beta_slow=parameters.number("beta_slow", 1.0),
        truncate=parameters.flag("truncate", default=True),
        attention_factor=parameters.number("attention_factor", magnitude, minimum=0.0),
    )


def _yarn_magnitude(factor: float, scale: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0
