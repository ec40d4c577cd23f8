"""unsupported_feature and unsupported_on_gpu: what keeps kernels from running a model.

Models with it run in torch. Whoever adds a field to ModelConfig that changes what a layer computes
adds it here, or teaches it to the kernels.
"""

from __future__ import annotations

from model.config import ModelConfig

NATIVE_ACTIVATIONS = ("silu", "gelu_tanh", "gelu", "clamped_swiglu")
"""In the order of their numbers in kvserve.h."""


def unsupported_feature(config: ModelConfig) -> str | None:
    """Name the first feature of a model that the kernels lack; None if they run all of it."""
    if config.activation not in NATIVE_ACTIVATIONS:
        return f"the activation {config.activation}"
    return None


def unsupported_on_gpu(config: ModelConfig) -> str | None:
    """Name the first feature of a model that the kernels for GPUs lack; None if they run it."""
    lacking = {
        "mixtures of experts": config.experts is not None,
        "attention sinks": config.attention_sinks,
        "soft caps of attention scores": config.attention_cap is not None,
        "soft caps of logits": config.logit_cap is not None,
        "a factor of the logits": config.logit_scale != 1.0,
        "a factor of the residuals": config.residual_scale != 1.0,
        "norms after attention and MLP alone": config.norm_placement == "post",
        "norms of whole rows of queries and keys": config.qk_norm == "row",
        "heads that are turned in part": any(
            rotary and rotary.dimensions not in (None, config.head_dim)
            for rotary in config.rotaries
        ),
        "the activation clamped_swiglu": config.activation == "clamped_swiglu",
    }
    found = (feature for feature, is_there in lacking.items() if is_there)
    return unsupported_feature(config) or next(found, None)
