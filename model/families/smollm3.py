"""SmolLM3: llama with every fourth layer without rotary positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from model.config import ModelConfig
from model.families.fields import Fields
from model.families.hf_fields import FULL, SLIDING, hf_layer_types
from model.families.llama import Llama
from model.families.tensor_parts import GGUFTensors

INTERVAL = 4


class SmolLM3(Llama):
    """SmolLM3."""

    name = "smollm3"
    gguf_name = "smollm3"
    hf_defaults: ClassVar[Mapping[str, object]] = {
        "num_key_value_heads": 4,
        "rope_theta": 2_000_000.0,
        "tie_word_embeddings": True,
    }

    def read_hf(self, fields: Fields) -> ModelConfig:
        """Read a config.json."""
        config = super().read_hf(fields)
        turned = _turned_layers(fields, num_layers=config.num_layers)
        return replace(
            config,
            rotaries=tuple(
                rotary if turns else None
                for rotary, turns in zip(config.rotaries, turned, strict=True)
            ),
        )

    def hf_layer_types(self, fields: Fields, *, num_layers: int) -> list[str]:
        """Layers without rotary have the window, if a switch says so."""
        windowed = fields.flag("use_sliding_window", default=False) and "sliding_window" in fields
        turned = _turned_layers(fields, num_layers=num_layers)
        types = hf_layer_types(
            fields, [SLIDING if windowed and not turns else FULL for turns in turned]
        )
        if SLIDING in types and not windowed:
            raise fields.error("layer_types", types, "no window without use_sliding_window")
        return types

    def read_gguf(self, fields: Fields, tensors: GGUFTensors) -> ModelConfig:
        """Read GGUF metadata, which do not say which layers have no rotary."""
        config = super().read_gguf(fields, tensors)
        return replace(
            config,
            rotaries=tuple(
                rotary if (i + 1) % INTERVAL else None for i, rotary in enumerate(config.rotaries)
            ),
        )


def _turned_layers(fields: Fields, *, num_layers: int) -> list[bool]:
    """Read for each layer whether it has rotary positions."""
    value = fields.get("no_rope_layers")
    if value is None:
        every = fields.integer("no_rope_layer_interval", INTERVAL)
        return [(i + 1) % every != 0 for i in range(num_layers)]
    if not isinstance(value, list) or len(value) < num_layers or not {0, 1}.issuperset(value):
        raise fields.error("no_rope_layers", value, f"0 or 1 for each of the {num_layers} layers")
    return [flag == 1 for flag in value[:num_layers]]


FAMILY = SmolLM3()
