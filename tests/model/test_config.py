"""What the fields of a ModelConfig say about each other, whatever file they came from."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from model.config import LARGEST_TABLE
from model.errors import ConfigError
from model.families.tensor_parts import GGUFTensors
from model.formats.gguf_config import read_gguf_config
from model.formats.hf_config import read_hf_config

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
GGUF_LLAMA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.vocab_size": 100,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.block_count": 2,
    "llama.attention.head_count": 4,
    "llama.context_length": 256,
    "llama.attention.layer_norm_rms_epsilon": 1e-6,
}


def test_both_formats_give_one_configuration() -> None:
    """The same model read from config.json and from GGUF metadata is equal."""
    assert read_gguf_config(
        GGUF_LLAMA, GGUFTensors(names=frozenset({"output.weight"}))
    ) == read_hf_config(LLAMA)


def test_configuration_cannot_be_changed() -> None:
    """A configuration is frozen and can be a key."""
    config = read_hf_config(LLAMA)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.num_layers = 3  # type: ignore[misc]  # the fault under test
    assert {config: 1}[read_hf_config(LLAMA)] == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_key_value_heads": 3}, "is 4; expected a multiple of the 3 key/value heads"),
        ({"num_key_value_heads": 8}, "is 4; expected a multiple of the 8 key/value heads"),
        ({"head_dim": 15}, "head_dim is 15; expected an even number"),
        ({"max_position_embeddings": 2**31 - 1}, f"expected at most {LARGEST_TABLE // 16} with"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], words: str) -> None:
    """Sizes that do not go together, or would exhaust the memory, are named."""
    with pytest.raises(ConfigError) as caught:
        read_hf_config(LLAMA | changes)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("factors", "words"),
    [
        ([1.0], "has 1 values; expected 8"),
        ([1.0] * 7 + [0.0], "not a number above 0"),
        ([1.0] * 7 + [float("nan")], "not a number above 0"),
    ],
)
def test_frequency_factors_must_fit(factors: list[float], words: str) -> None:
    """Frequency factors are as many as half the head size, and divide."""
    with pytest.raises(ConfigError, match=words):
        read_gguf_config(GGUF_LLAMA, GGUFTensors(vectors={"rope_freqs.weight": tuple(factors)}))
