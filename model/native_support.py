"""unsupported_feature: what keeps the native kernels from running a model.

Models with it run in torch. Whoever adds a field to ModelConfig that changes what a layer computes
adds it here, or teaches it to the kernels.
"""

from __future__ import annotations

from model.config import ModelConfig

NATIVE_ACTIVATIONS = ("silu", "gelu_tanh", "gelu")
"""In the order of their numbers in kvserve.h."""


def unsupported_feature(config: ModelConfig) -> str | None:
    """Name the first feature of a model that the kernels lack; None if they run all of it."""
    if config.activation not in NATIVE_ACTIVATIONS:
        return f"the activation {config.activation}"
    return None
