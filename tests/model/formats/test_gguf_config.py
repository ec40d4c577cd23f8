"""GGUF metadata, written by the `gguf` package, against the config.json they stand for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader, GGUFWriter, RopeScalingType

from model.config import ModelConfig
from model.errors import ConfigError
from model.families.tensor_parts import GGUFTensors
from model.formats.gguf_config import read_gguf_config
from model.formats.hf_config import read_hf_config

TIED = GGUFTensors()
UNTIED = GGUFTensors(names=frozenset({"output.weight"}))

SHAPE: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 2.0**-20,
    "rope_theta": 50_000.0,
}


def write(path: Path, architecture: str) -> GGUFWriter:
    """A writer with the fields that every family has, for the model of SHAPE."""
    writer = GGUFWriter(path, architecture)
    writer.add_context_length(256)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_block_count(8)
    writer.add_head_count(4)
    writer.add_token_list([f"t{i}" for i in range(100)])
    if architecture == "gpt2":
        writer.add_layer_norm_eps(2.0**-20)
        return writer
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(2.0**-20)
    writer.add_rope_freq_base(50_000.0)
    return writer


def metadata(writer: GGUFWriter) -> dict[str, object]:
    """What a reader finds in the finished file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert writer.path is not None
    fields = GGUFReader(writer.path).fields
    return {name: field.contents() for name, field in fields.items()}


def from_hf(model_type: str, **changes: Any) -> ModelConfig:
    return read_hf_config(SHAPE | {"model_type": model_type} | changes)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_families_of_one_skeleton(tmp_path: Path, architecture: str) -> None:
    """llama, qwen2 and qwen3 mean what their config.json says."""
    writer = write(tmp_path / "a.gguf", architecture)
    writer.add_key_length(16)
    writer.add_value_length(16)
    writer.add_rope_dimension_count(16)
    config = read_gguf_config(metadata(writer), UNTIED)
    assert config == from_hf(architecture, head_dim=16)


def test_yarn_and_float32(tmp_path: Path) -> None:
    """Scaling, tied output and an all-float32 file come through."""
    writer = write(tmp_path / "a.gguf", "qwen2")
    writer.add_rope_scaling_type(RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(64)
    writer.add_file_type(0)
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    wanted = from_hf("qwen2", rope_scaling=scaling, tie_word_embeddings=True, dtype="float32")
    assert read_gguf_config(metadata(writer), TIED) == wanted


def test_window_of_a_llama_is_that_of_mistral(tmp_path: Path) -> None:
    """A llama file with a window has it in every layer, as mistral does."""
    writer = write(tmp_path / "a.gguf", "llama")
    writer.add_sliding_window(32)
    config = read_gguf_config(metadata(writer), UNTIED)
    assert replace(config, architecture="mistral") == from_hf("mistral", sliding_window=32)


@pytest.mark.parametrize("pattern", [None, 3, [True, False] * 4])
def test_gemma3(tmp_path: Path, pattern: Any) -> None:
    """Local and global layers, both rotary bases and linear scaling mean what config.json says."""
    writer = write(tmp_path / "a.gguf", "gemma3")
    writer.add_key_length(32)
    writer.add_value_length(32)
    writer.add_sliding_window(16)
    writer.add_rope_scaling_type(RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(8.0)
    changes: dict[str, Any] = {}
    if isinstance(pattern, list):
        writer.add_sliding_window_pattern(pattern)
        types = ["sliding_attention" if local else "full_attention" for local in pattern]
        changes["layer_types"] = types
    elif pattern is not None:
        writer.add_uint32("gemma3.attention.sliding_window_pattern", pattern)
        changes["sliding_window_pattern"] = pattern
    wanted = from_hf(
        "gemma3_text",
        head_dim=32,
        query_pre_attn_scalar=32,
        sliding_window=16,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        **changes,
    )
    assert read_gguf_config(metadata(writer), TIED) == wanted


def test_gemma3_of_62_layers_scales_by_hidden_size_per_head() -> None:
    """The one size whose attention scale is not in its file has the scale of its family."""
    fields: dict[str, Any] = {
        "general.architecture": "gemma3",
        "gemma3.vocab_size": 100,
        "gemma3.context_length": 256,
        "gemma3.embedding_length": 84,
        "gemma3.feed_forward_length": 96,
        "gemma3.block_count": 62,
        "gemma3.attention.head_count": 4,
        "gemma3.attention.key_length": 16,
        "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
    }
    assert read_gguf_config(fields, TIED).attention_scale == 21**-0.5
    fields["gemma3.block_count"] = 26
    assert read_gguf_config(fields, TIED).attention_scale == 16**-0.5


def test_gpt2(tmp_path: Path) -> None:
    """gpt2 means what its config.json says."""
    fields = {
        "model_type": "gpt2",
        "vocab_size": 100,
        "n_embd": 64,
        "n_inner": 96,
        "n_layer": 8,
        "n_head": 4,
        "n_positions": 256,
        "layer_norm_epsilon": 2.0**-20,
    }
    config = read_gguf_config(metadata(write(tmp_path / "a.gguf", "gpt2")), TIED)
    assert config == read_hf_config(fields)


@pytest.mark.parametrize(
    ("architecture", "key", "value"),
    [
        ("llama", "rope.dimension_count", 8),
        ("llama", "attention.value_length", 8),
        ("llama", "attention.head_count_kv", [2, 2, 2, 2, 2, 2, 2, 1]),
        ("llama", "attention.head_count_kv", ["2"]),
        ("llama", "block_count", 2**32 - 1),
        ("llama", "embedding_length", 0),
        ("qwen2", "attention.sliding_window", 64),
        ("gemma3", "final_logit_softcapping", 30.0),
        ("gemma3", "attention.sliding_window_pattern", [True]),
        ("gpt2", "attention.head_count", 3),
    ],
)
def test_what_is_not_supported_is_named(
    tmp_path: Path, architecture: str, key: str, value: object
) -> None:
    """A key that asks for something else, or holds nonsense, is refused by its full name."""
    fields = metadata(write(tmp_path / "a.gguf", architecture))
    fields["gemma3.attention.sliding_window"] = 16
    named = "gpt2.embedding_length" if architecture == "gpt2" else f"{architecture}.{key}"
    with pytest.raises(ConfigError, match=rf"^{named} is "):
        read_gguf_config(fields | {f"{architecture}.{key}": value}, TIED)


def test_unknown_architecture_is_refused() -> None:
    """An architecture that is not supported is named, with those that are."""
    with pytest.raises(
        ConfigError, match="architecture is 'bert'; expected one of gemma2, gemma3, gpt-oss"
    ):
        read_gguf_config({"general.architecture": "bert"}, TIED)


def test_one_number_for_each_layer_is_accepted_when_all_are_equal(tmp_path: Path) -> None:
    """Key/value heads may be given layer by layer."""
    fields = metadata(write(tmp_path / "a.gguf", "llama"))
    fields["llama.attention.head_count_kv"] = [2] * 8
    assert read_gguf_config(fields, UNTIED) == from_hf("llama")
