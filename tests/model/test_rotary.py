"""Rotary frequencies against those of transformers, bit by bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from model.errors import ConfigError
from model.families.fields import Fields
from model.families.rotary_fields import gguf_rotary, hf_rotary
from model.rotary import RotaryConfig

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": LLAMA3,
    "llama3-without-original": {
        key: value for key, value in LLAMA3.items() if not key.startswith("original")
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    "yarn-mscale": {
        "rope_type": "yarn",
        "factor": 40.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
        "beta_fast": 20,
        "beta_slow": 2,
        "original_max_position_embeddings": 4096,
    },
    "yarn-one-mscale": {
        "rope_type": "yarn",
        "factor": 40.0,
        "mscale": 0.7,
        "original_max_position_embeddings": 4096,
    },
    "yarn-attention-factor": {
        "rope_type": "yarn",
        "factor": 4.0,
        "attention_factor": 0.5,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
}


def settings(scaling: dict[str, Any], *, old: bool) -> dict[str, Any]:
    """A config.json with the scaling in the spelling of before or after transformers 5."""
    fields: dict[str, Any] = {
        "hidden_size": 256,
        "num_attention_heads": 2,
        "max_position_embeddings": 131072,
    }
    if not old:
        return fields | {"rope_parameters": scaling | {"rope_theta": 500_000.0}}
    renamed = {"type" if key == "rope_type" else key: value for key, value in scaling.items()}
    return fields | {"rope_theta": 500_000.0, "rope_scaling": renamed}


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("kind", SCALINGS)
def test_frequencies_equal_transformers(kind: str, old: bool) -> None:
    """Frequencies and attention factor are those of transformers, in either spelling."""
    reference = LlamaConfig(**settings(dict(SCALINGS[kind]), old=False))
    make = ROPE_INIT_FUNCTIONS.get(
        SCALINGS[kind]["rope_type"], LlamaRotaryEmbedding.compute_default_rope_parameters
    )
    wanted, attention_factor = make(reference)
    rotary = hf_rotary(Fields(settings(SCALINGS[kind], old=old)))
    assert torch.equal(rotary.inverse_frequencies(128), wanted)
    assert rotary.attention_factor == pytest.approx(attention_factor, rel=1e-12)


def test_dynamic_differs_beyond_the_context_only() -> None:
    """Up to the configured length dynamic scaling is none, which is why no table goes further."""
    config = LlamaConfig(**settings(SCALINGS["dynamic"], old=False))
    rotary = hf_rotary(Fields(settings(SCALINGS["dynamic"], old=False)))
    for length, same in ((1, True), (131072, True), (131073, False), (200_000, False)):
        wanted, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, seq_len=length)
        assert torch.equal(rotary.inverse_frequencies(128), wanted) == same


def test_frequency_factors_divide() -> None:
    """The factors a GGUF carries for llama3 give the frequencies of its configuration."""
    fields = Fields(settings(LLAMA3, old=True))
    wanted = hf_rotary(fields).inverse_frequencies(128)
    plain = RotaryConfig(theta=500_000.0).inverse_frequencies(128)
    factors = tuple((plain / wanted).tolist())
    rotary = gguf_rotary(Fields({"rope.freq_base": 5e5}), frequency_factors=factors)
    torch.testing.assert_close(rotary.inverse_frequencies(128), wanted)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_type": "longrope"}, "rope_scaling.long_factor is missing"),
        ({"type": "su"}, "rope_scaling.long_factor is missing"),
        ({"rope_type": "linear"}, "rope_scaling.factor is missing"),
        ({"rope_type": "linear", "factor": 0}, "rope_scaling.factor is 0"),
        ({"rope_type": "llama3", "factor": 2.0}, "rope_scaling.low_freq_factor is missing"),
        (LLAMA3 | {"high_freq_factor": 1.0}, "rope_scaling.high_freq_factor is 1.0"),
        (
            {"rope_type": "default", "partial_rotary_factor": 0.5},
            "rope_scaling.partial_rotary_factor is 0.5",
        ),
    ],
)
def test_unknown_and_incomplete_scalings_are_refused(changes: dict[str, Any], words: str) -> None:
    """A scaling that is not supported, or lacks a field, is named."""
    with pytest.raises(ConfigError) as caught:
        hf_rotary(Fields({"max_position_embeddings": 10, "rope_scaling": changes}))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("metadata", "hf"),
    [
        ({}, {}),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, {}),
        ({"rope.scale_linear": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 4096,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
        ),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 2.0,
                "rope.scaling.attn_factor": 2.0,
                "rope.scaling.yarn_beta_fast": 16.0,
                "rope.scaling.yarn_beta_slow": 2.0,
            },
            {
                "rope_type": "yarn",
                "factor": 2.0,
                "attention_factor": 2.0 * (1 + 0.1 * 0.6931471805599453),
                "beta_fast": 16.0,
                "beta_slow": 2.0,
            },
        ),
    ],
)
def test_gguf_keys_mean_what_config_json_says(metadata: dict[str, Any], hf: dict[str, Any]) -> None:
    """Rotary metadata give the same configuration as the fields they were made from."""
    base = {"context_length": 8192, "rope.freq_base": 1e6}
    ours = gguf_rotary(Fields(base | metadata))
    config = {"max_position_embeddings": 8192, "rope_theta": 1e6, "rope_scaling": hf}
    assert ours == hf_rotary(Fields(config))


def test_unsupported_gguf_scalings_are_refused() -> None:
    """A scaling type or option of a GGUF that is not supported is named with its key."""
    for key, value in (("rope.scaling.type", "longrope"), ("rope.scaling.alpha", 2.0)):
        with pytest.raises(ConfigError, match=rf"llama\.{key} is"):
            gguf_rotary(Fields({f"llama.{key}": value}, prefix="llama."))
