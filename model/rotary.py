"""RotaryConfig: the angles by which queries and keys are turned, and how they are stretched.

Reads the rotary fields of config.json and of GGUF metadata and computes the frequencies.
The tables of cosines and sines made from them are in layers.RotaryEmbedding.

The frequencies follow the float32 arithmetic of `transformers`, operation by operation: at a
position of 100,000 one rounding in a frequency turns a vector by a hundredth of a radian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from model.formats.fields import Fields

SCALINGS = ("default", "linear", "dynamic", "llama3", "yarn")
HF_DEFAULT_THETA = 10_000.0
GGUF_SCALINGS = ("none", "linear", "yarn")


@dataclass(frozen=True, kw_only=True, slots=True)
class RotaryConfig:
    """Rotary position embedding of one layer (Su et al., arXiv:2104.09864) and its scaling."""

    theta: float
    """Base of the geometric row of wavelengths."""
    scaling: str = "default"
    """One of SCALINGS. "dynamic" changes nothing up to the configured context length, and the
    table ends there: beyond it the angles would depend on the length of each whole sequence."""
    factor: float = 1.0
    """By how much the context was stretched."""
    original_max_position_embeddings: int = 1
    """Context length before the stretching (llama3, yarn)."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    """The band between kept and divided frequencies, in turns per original context (llama3)."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    """The same band for yarn (Peng et al., arXiv:2309.00071)."""
    truncate: bool = True
    """Whether yarn's band is rounded outwards to whole dimensions."""
    attention_factor: float = 1.0
    """Multiplies cosines and sines (yarn)."""
    frequency_factors: tuple[float, ...] = ()
    """D/2 divisors of the frequencies, as a GGUF carries them in rope_freqs.weight."""

    def inverse_frequencies(self, head_dim: int) -> Tensor:
        """Return the (D/2,) float32 angles per position, on the CPU."""
        # The device is named because a model may be under construction on the meta device.
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim
        wavelengths = self.theta**exponents
        frequencies = 1.0 / wavelengths
        if self.scaling == "linear":
            frequencies = frequencies / self.factor
        elif self.scaling == "llama3":
            frequencies = self._llama3(frequencies)
        elif self.scaling == "yarn":
            frequencies = self._yarn(wavelengths, head_dim)
        if self.frequency_factors:
            frequencies = frequencies / torch.tensor(self.frequency_factors, device="cpu")
        return frequencies

    def _llama3(self, frequencies: Tensor) -> Tensor:
        """Divide the slow frequencies by the factor and blend in the band (Llama 3.1)."""
        context, low, high = (
            self.original_max_position_embeddings,
            self.low_freq_factor,
            self.high_freq_factor,
        )
        lengths = 2 * math.pi / frequencies
        smooth = (context / lengths - low) / (high - low)
        blended = (1 - smooth) * frequencies / self.factor + smooth * frequencies
        scaled = torch.where(lengths > context / low, frequencies / self.factor, blended)
        return torch.where(lengths < context / high, frequencies, scaled)

    def _yarn(self, wavelengths: Tensor, head_dim: int) -> Tensor:
        """Keep the fast frequencies, divide the slow ones, and slope linearly in between."""

        def dimension(turns: float) -> float:
            context = self.original_max_position_embeddings
            return (head_dim * math.log(context / (turns * 2 * math.pi))) / (
                2 * math.log(self.theta)
            )

        low, high = dimension(self.beta_fast), dimension(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        high = high + 0.001 if low == high else high
        index = torch.arange(head_dim // 2, dtype=torch.float32, device="cpu")
        keep = 1 - torch.clamp((index - low) / (high - low), 0, 1)
        return 1.0 / (self.factor * wavelengths) * (1 - keep) + 1.0 / wavelengths * keep

    @staticmethod
    def from_hf(
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

    @staticmethod
    def from_gguf(fields: Fields, *, frequency_factors: tuple[float, ...] = ()) -> RotaryConfig:
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
