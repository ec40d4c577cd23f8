"""RotaryConfig: the angles by which queries and keys are turned, and how they are stretched.

Plain data and the frequencies they stand for; families/rotary_fields.py reads it from files.
The tables of cosines and sines made from them are in layers.RotaryEmbedding.

The frequencies follow the float32 arithmetic of `transformers`, operation by operation: at a
position of 100,000 one rounding in a frequency turns a vector by a hundredth of a radian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from model.errors import ConfigError

SCALINGS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


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
    """Multiplies cosines and sines (yarn, longrope)."""
    frequency_factors: tuple[float, ...] = ()
    """Divisors of the frequencies: longrope's, or rope_freqs.weight of a GGUF file."""
    short_factors: tuple[float, ...] = ()
    """Those that longrope has for sequences within the original context (arXiv:2402.13753).

    Which to take must not change within a sequence, whose keys are cached; it depends on the
    longest sequence to be served."""
    dimensions: int | None = None
    """How many leading dimensions of each head are turned; None is all."""

    def limited_to(self, context: int) -> RotaryConfig:
        """Return what turns sequences of at most that many tokens."""
        if not self.short_factors or context > self.original_max_position_embeddings:
            return self
        return replace(self, frequency_factors=self.short_factors, short_factors=())

    def check(self, head_dim: int) -> None:
        """Check that it fits heads of that size.

        Raises:
            ConfigError: It turns an odd number of dimensions or too many, or its factors are not
                as many as its angles, or do not divide.
        """
        turned = self.dimensions or head_dim
        if turned % 2 or turned > head_dim:
            name = "head_dim" if self.dimensions is None else "The rotary dimension"
            raise ConfigError(
                f"{name} is {turned}; expected an even number for rotary, "
                f"at most the head size, {head_dim}."
            )
        expected = turned // 2
        which = "The list of rotary factors (rope_freqs.weight, long_factor or short_factor)"
        for factors in filter(None, (self.frequency_factors, self.short_factors)):
            if len(factors) != expected:
                raise ConfigError(
                    f"{which} has {len(factors)} values; "
                    f"expected {expected}, half of what is turned of a head."
                )
            if not all(0 < factor < math.inf for factor in factors):
                raise ConfigError(f"{which} has a value that is not a number above 0.")

    def inverse_frequencies(self, head_dim: int) -> Tensor:
        """Return the float32 angles per position, half as many as are turned, on the CPU."""
        head_dim = self.dimensions or head_dim
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
        if self.scaling == "longrope":
            return 1.0 / (torch.tensor(self.frequency_factors, device="cpu") * wavelengths)
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
