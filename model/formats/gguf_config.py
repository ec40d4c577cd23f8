"""read_gguf_config: from the metadata of a GGUF file to a ModelConfig.

What is not supported is refused with the key's name, its value and what would be accepted;
nothing is guessed and nothing ignored that would change a result. Never opens a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from model.config import ModelConfig
from model.families.fields import Fields
from model.families.known import GGUF_FAMILIES
from model.families.tensor_parts import GGUFTensors

OUTPUT = "output.weight"


def read_gguf_config(metadata: Mapping[str, object], tensors: GGUFTensors) -> ModelConfig:
    """Read the metadata of a GGUF file.

    Args:
        metadata: Plain Python values by their full keys.
        tensors: What the file's tensors add; without output.weight the embeddings are tied.

    Raises:
        ConfigError: A key is missing, malformed, or asks for what is not supported.
    """
    name = Fields(metadata).text("general.architecture", known=GGUF_FAMILIES)
    config = GGUF_FAMILIES[name].read_gguf(Fields(metadata, prefix=f"{name}."), tensors)
    is_float32 = metadata.get("general.file_type") == 0
    return replace(
        config,
        tie_word_embeddings=OUTPUT not in tensors.names,
        weights_dtype="float32" if is_float32 else "bfloat16",
    )
