"""The fields of config.json, family by family, as transformers understands them."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import (
    AutoConfig,
    Gemma3Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from model.errors import ConfigError
from model.formats.hf_config import read_hf_config
from model.rotary import RotaryConfig

SHAPE: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}

HUB_FILES: dict[str, dict[str, Any]] = {
    "llama-3.2": SHAPE
    | {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 64,
            "rope_type": "llama3",
        },
        "pretraining_tp": 1,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    },
    "mistral-0.3": SHAPE
    | {"model_type": "mistral", "num_key_value_heads": 4, "sliding_window": None},
    "mistral-0.1": SHAPE
    | {
        "model_type": "mistral",
        "num_key_value_heads": 2,
        "sliding_window": 32,
        "rope_theta": 10000.0,
        "torch_dtype": "float16",
    },
    "qwen2.5": SHAPE
    | {
        "model_type": "qwen2",
        "num_key_value_heads": 2,
        "max_window_layers": 3,
        "sliding_window": 32,
        "use_sliding_window": False,
        "rope_theta": 1000000.0,
        "rope_scaling": {
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "type": "yarn",
        },
        "dtype": "float32",
    },
    "qwen2-windowed": SHAPE
    | {
        "model_type": "qwen2",
        "num_key_value_heads": None,
        "use_sliding_window": True,
        "sliding_window": 32,
        "max_window_layers": 3,
    },
    "qwen3": SHAPE
    | {
        "model_type": "qwen3",
        "head_dim": 32,
        "num_key_value_heads": 2,
        "attention_bias": False,
        "rope_scaling": None,
        "sliding_window": None,
        "use_sliding_window": False,
        "max_window_layers": 8,
    },
    "gemma-3-1b": SHAPE
    | {
        "model_type": "gemma3_text",
        "head_dim": 32,
        "num_key_value_heads": 1,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "cache_implementation": "hybrid",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 24,
        "rope_local_base_freq": 300,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "rope_theta": 5000,
        "sliding_window": 32,
        "sliding_window_pattern": 3,
    },
    "gemma-3-270m": SHAPE
    | {
        "model_type": "gemma3_text",
        "num_key_value_heads": 1,
        "_sliding_window_pattern": 6,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"] + ["sliding_attention"] * 2,
        "sliding_window": 32,
        "rope_local_base_freq": 10000.0,
        "rope_theta": 1000000.0,
        "use_bidirectional_attention": False,
    },
    "gpt2": {
        "model_type": "gpt2",
        "vocab_size": 50257,
        "n_ctx": 1024,
        "n_embd": 768,
        "n_head": 12,
        "n_layer": 12,
        "n_positions": 1024,
        "layer_norm_epsilon": 1e-05,
    },
}

DEFAULTS: list[PretrainedConfig] = [
    LlamaConfig(),
    MistralConfig(),
    Qwen2Config(),
    Qwen3Config(),
    Gemma3TextConfig(),
    GPT2Config(),
]


def transformers_round_trip(fields: dict[str, Any]) -> dict[str, Any]:
    """The same file as transformers would write it today, every default spelled out."""
    rest = {key: value for key, value in fields.items() if key != "model_type"}
    return AutoConfig.for_model(fields["model_type"], **rest).to_dict()


@pytest.mark.parametrize("name", HUB_FILES)
def test_old_and_new_spellings_agree(name: str) -> None:
    """A file as it stands on the hub means the same as what transformers makes of it."""
    fields = HUB_FILES[name]
    assert read_hf_config(fields) == read_hf_config(transformers_round_trip(fields))


@pytest.mark.parametrize("config", DEFAULTS, ids=lambda config: config.model_type)
def test_missing_fields_have_the_defaults_of_transformers(config: PretrainedConfig) -> None:
    """Optional fields that a file leaves out are what transformers takes them to be."""
    full = config.to_dict()
    required = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    required += ("num_attention_heads", "max_position_embeddings")
    sparse = {key: full[key] for key in ("model_type", *required) if key in full}
    assert read_hf_config(sparse) == read_hf_config(full)


def test_facts_of_each_family() -> None:
    """Windows, rotaries, scales and dtypes are those that the fields say."""
    read = {name: read_hf_config(fields) for name, fields in HUB_FILES.items()}
    assert read["llama-3.2"].rotaries[7] == RotaryConfig(
        theta=500000.0,
        scaling="llama3",
        factor=32.0,
        original_max_position_embeddings=64,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
    )
    assert read["llama-3.2"].tie_word_embeddings
    assert read["mistral-0.1"].windows == (32,) * 8
    assert read["mistral-0.3"].windows == (None,) * 8
    assert read["mistral-0.1"].weights_dtype == "bfloat16"
    assert read["qwen2.5"].windows == (None,) * 8
    assert read["qwen2.5"].qkv_bias
    assert not read["qwen2.5"].output_bias
    assert read["qwen2.5"].weights_dtype == "float32"
    assert read["qwen2-windowed"].windows == (None,) * 3 + (32,) * 5
    assert read["qwen3"].qk_norm == "head"
    assert read["qwen3"].head_dim == 32
    gemma = read["gemma-3-1b"]
    assert gemma.windows == (32, 32, None, 32, 32, None, 32, 32)
    assert gemma.rotaries[2] == RotaryConfig(theta=5000.0, scaling="linear", factor=8.0)
    assert gemma.rotaries[0] == RotaryConfig(theta=300.0)
    assert gemma.attention_scale == 24**-0.5
    assert gemma.embedding_scale == 8.0
    assert read["gemma-3-270m"].windows == (32,) * 5 + (None, 32, 32)
    assert read["gpt2"].intermediate_size == 3072
    assert read["gpt2"].rotaries == (None,) * 12


def test_multimodal_gemma3_is_read_as_its_text_part() -> None:
    """A gemma3 with a vision tower gives the configuration of the language model inside."""
    text = Gemma3TextConfig(**SHAPE, num_key_value_heads=2)
    whole = Gemma3Config(text_config=text.to_dict())
    assert read_hf_config(whole.to_dict()) == read_hf_config(text.to_dict())


def test_multimodal_gemma3_of_the_hub_leaves_most_fields_out() -> None:
    """A text part with a handful of fields is completed as transformers completes it."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    config = read_hf_config({"model_type": "gemma3", "text_config": text})
    assert config == read_hf_config(transformers_round_trip(text))


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("llama-3.2", {"model_type": "mamba2"}, "model_type is 'mamba2'; expected one of gemma2"),
        ("llama-3.2", {"model_type": None}, "model_type is missing"),
        ("llama-3.2", {"hidden_act": "relu"}, "hidden_act is 'relu'; expected one of gelu"),
        ("llama-3.2", {"hidden_size": "64"}, "hidden_size is '64'; expected a whole number"),
        ("llama-3.2", {"hidden_size": None}, "hidden_size is missing"),
        ("llama-3.2", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ("llama-3.2", {"num_attention_heads": 5, "head_dim": None}, "hidden_size is 64; expected"),
        ("llama-3.2", {"partial_rotary_factor": 0.25}, "partial_rotary_factor is 0.25"),
        ("llama-3.2", {"rope_scaling": {"type": "ntk"}}, "rope_scaling.type is 'ntk'"),
        ("llama-3.2", {"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}"),
        ("llama-3.2", {"layer_types": ["sliding_attention"] * 8}, "layer_types is"),
        ("llama-3.2", {"dtype": "int8"}, "dtype is 'int8'; expected one of"),
        ("mistral-0.1", {"layer_types": ["full_attention"] * 8}, "layer_types is"),
        ("mistral-0.1", {"sliding_window": 0}, "sliding_window is 0"),
        ("qwen2.5", {"layer_types": ["sliding_attention"] * 8}, "layer_types is"),
        ("qwen2-windowed", {"layer_types": ["linear_attention"] * 8}, "layer_types is 'linear"),
        ("qwen2-windowed", {"layer_types": ["full_attention"]}, "layer_types is '1 entries'"),
        ("gemma-3-1b", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
        ("gemma-3-1b", {"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0"),
        ("gemma-3-1b", {"use_bidirectional_attention": True}, "use_bidirectional_attention is"),
        ("gemma-3-1b", {"rope_parameters": {"rope_theta": 1.0}}, "rope_parameters is"),
        ("gemma-3-1b", {"sliding_window": None}, "sliding_window is missing"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention is True"),
        ("gpt2", {"n_head": 7}, "n_embd is 768; expected a multiple of n_head, 7"),
    ],
)
def test_what_is_not_supported_is_named(name: str, changes: dict[str, Any], words: str) -> None:
    """A field or value that would change the result is refused, with its name and value."""
    with pytest.raises(ConfigError) as caught:
        read_hf_config(HUB_FILES[name] | changes)
    assert words in str(caught.value)
