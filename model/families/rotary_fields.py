"""How RotaryConfig is read from the fields of config.json and of GGUF metadata."""

from __future__ import annotations

import math
from dataclasses import replace

from model.families.fields import Fields
from model.rotary import SCALINGS, RotaryConfig

HF_DEFAULT_THETA = 10_000.0
GGUF_SCALINGS = ("none", "linear", "yarn")


def hf_rotary(
    config: Fields, *, parameters: Fields | None = None, theta: float | None = None
) -> RotaryConfig:
    """Read the rotary fields of a config.json.

    Args:
        config: The whole configuration.
        parameters: Where the scaling stands; by default `rope_scaling`, else
            `rope_parameters`.
        theta: The base when `parameters` has none; by default `rope_theta`.

    Raises:
        ConfigError: The scaling is unknown or incomplete.
    """
    config.refuse("partial_rotary_factor", neutral=(1, 1.0))
    if parameters is None:
        old, new = config.within("rope_scaling"), config.within("rope_parameters")
        parameters = old if old.values else new
    parameters.refuse("partial_rotary_factor", neutral=(1, 1.0))
    if theta is None:
        theta = config.number("rope_theta", HF_DEFAULT_THETA)
    base = RotaryConfig(theta=parameters.number("rope_theta", theta))
    spelling = "rope_type" if "rope_type" in parameters else "type"
    scaling = parameters.text(spelling, "default", known=SCALINGS)
    if scaling == "default":
        return base
    base = replace(base, scaling=scaling)
    if scaling == "yarn":
        return _yarn_from_hf(config, parameters, base)
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
