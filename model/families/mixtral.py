"""Mixtral: mistral with experts in every layer; its GGUF files say llama."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

from model.config import ModelConfig
from model.families.experts_fields import hf_experts
from model.families.fields import Fields
from model.families.mistral import Mistral
from model.families.tensor_parts import TensorPart

_EXPERT = re.compile(r"(model\.layers\.\d+\.)block_sparse_moe\.experts\.(\d+)\.w([123])\.weight")
_ROUTER = ".block_sparse_moe.gate."
_PROJECTIONS: Mapping[str, str] = {"1": "gate_proj", "2": "down_proj", "3": "up_proj"}


class Mixtral(Mistral):
    """Mixtral."""

    name = "mixtral"
    hf_defaults: ClassVar[Mapping[str, object]] = {
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }

    def read_hf(self, fields: Fields) -> ModelConfig:
        """Read a config.json."""
        fields = fields.over(self.hf_defaults)
        config = super().read_hf(fields)
        return replace(
            config,
            experts=hf_experts(fields, width="intermediate_size", renormalize=True),
            sparse_layers=(True,) * config.num_layers,
        )

    def hf_parts(
        self, key: str, shape: tuple[int, ...], config: ModelConfig
    ) -> Iterator[TensorPart]:
        """Rename experts and routers."""
        del shape, config
        expert = _EXPERT.fullmatch(key)
        if expert:
            prefix, index, number = expert.groups()
            yield TensorPart(name=f"{prefix}mlp.experts.{index}.{_PROJECTIONS[number]}.weight")
        else:
            yield TensorPart(name=key.replace(_ROUTER, ".mlp.gate."))


FAMILY = Mixtral()
