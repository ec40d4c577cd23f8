"""Mistral: llama without biases, with one window in every layer; its GGUF files say llama."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from model.families.family import Family
from model.families.fields import Fields
from model.families.hf_fields import FULL, SLIDING, hf_uniform_layer_types


class Mistral(Family):
    """Mistral 7B and its kin."""

    name = "mistral"
    hf_defaults: ClassVar[Mapping[str, object]] = {"num_key_value_heads": 8, "sliding_window": 4096}

    def hf_layer_types(self, fields: Fields, *, num_layers: int) -> list[str]:
        """Every layer has the window, if there is one."""
        kind = SLIDING if "sliding_window" in fields else FULL
        return hf_uniform_layer_types(fields, kind, num_layers=num_layers)


FAMILY = Mistral()
