"""Gemma: what Gemma 2 and 3 share: norms around both blocks, stored as what 1 is added to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from model.config import ModelConfig
from model.families.family import Family
from model.families.tensor_parts import TensorPart


class Gemma(Family):
    """A gemma with norms around both blocks."""

    gguf_in_block: ClassVar[Mapping[str, str]] = {
        **Family.gguf_in_block,
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }

    def hf_parts(
        self, key: str, shape: tuple[int, ...], config: ModelConfig
    ) -> Iterator[TensorPart]:
        """Add 1 to the norms; in GGUF files that is done."""
        del shape, config
        yield TensorPart(name=key, offset=1.0 if key.endswith("norm.weight") else 0.0)
