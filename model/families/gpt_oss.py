"""gpt-oss: experts with biases and a clamped gate, attention sinks, every other layer local."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

from model.config import ExpertsConfig, ModelConfig
from model.families.experts_fields import hf_experts
from model.families.family import GGUF_BLOCK_NAME, Family
from model.families.fields import Fields
from model.families.gguf_fields import gguf_window, gguf_window_pattern
from model.families.hf_fields import FULL, SLIDING, hf_layer_types
from model.families.tensor_parts import GGUFTensors, TensorPart
from model.rotary import RotaryConfig

_EXPERTS = re.compile(
    r"(model\.layers\.\d+\.mlp\.experts)\.(gate_up_proj|down_proj)(_blocks|_bias)?"
)
_YARN: Mapping[str, object] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


class GptOss(Family):
    """gpt-oss-20b and gpt-oss-120b."""

    name = "gpt_oss"
    gguf_name = "gpt-oss"
    hf_defaults: ClassVar[Mapping[str, object]] = {
        "head_dim": 64,
        "num_key_value_heads": 8,
        "sliding_window": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150_000.0,
        "max_position_embeddings": 131_072,
        "num_experts_per_tok": 4,
    }
    gguf_in_block: ClassVar[Mapping[str, str]] = {
        **Family.gguf_in_block,
        "post_attention_norm": "post_attention_layernorm",
    }

    def read_hf(self, fields: Fields) -> ModelConfig:
        """Read a config.json."""
        fields = fields.over(self.hf_defaults)
        for name, value in (("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)):
            fields.refuse(name, neutral=(value,))
        if "rope_parameters" not in fields and "rope_scaling" not in fields:
            fields = fields.over({"rope_parameters": _YARN})
        experts = hf_experts(
            fields if "num_local_experts" in fields else fields.over({"num_experts": 128}),
            width="intermediate_size",
            renormalize=True,
        )
        bias = fields.flag("attention_bias", default=True)
        return self._finish(super().read_hf(fields), experts, bias=bias)

    def hf_layer_types(self, fields: Fields, *, num_layers: int) -> list[str]:
        """The first layer and every second after it have the window."""
        return hf_layer_types(fields, [FULL if i % 2 else SLIDING for i in range(num_layers)])

    def read_gguf(self, fields: Fields, tensors: GGUFTensors) -> ModelConfig:
        """Read GGUF metadata, which cannot say that yarn's band is not rounded."""
        config = super().read_gguf(fields, tensors)
        if config.experts is None:
            raise fields.error("expert_count", fields.get("expert_count"), "a number above 0")
        window = gguf_window(fields)
        pattern = gguf_window_pattern(fields, num_layers=config.num_layers, every=2)
        config = replace(
            config,
            windows=tuple(window if flag else None for flag in pattern),
            rotaries=tuple(map(_not_rounded, config.rotaries)),
        )
        assert config.experts is not None
        return self._finish(config, config.experts, bias=True)

    def _finish(self, config: ModelConfig, experts: ExpertsConfig, *, bias: bool) -> ModelConfig:
        return replace(
            config,
            experts=replace(experts, bias=True, router_bias=True),
            sparse_layers=(True,) * config.num_layers,
            activation="clamped_swiglu",
            attention_sinks=True,
            qkv_bias=bias,
            output_bias=bias,
        )

    def hf_parts(
        self, key: str, shape: tuple[int, ...], config: ModelConfig
    ) -> Iterator[TensorPart]:
        """Take the experts apart; gate and up alternate in one matrix, stored as (in, out)."""
        del config
        found = _EXPERTS.fullmatch(key)
        if not found:
            yield TensorPart(name=key.replace(".mlp.router.", ".mlp.gate."))
            return
        prefix, matrix, form = found.groups()
        rows = {"down_proj": slice(None)}
        if matrix == "gate_up_proj":
            rows = {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2)}
        kind = "bias" if form == "_bias" else "weight"
        for expert in range(shape[0]):
            for name, chosen in rows.items():
                yield TensorPart(
                    name=f"{prefix}.{expert}.{name}.{kind}",
                    expert=expert,
                    transposed=form is None,
                    rows=chosen,
                )

    def gguf_parts(
        self, key: str, shape: tuple[int, ...], config: ModelConfig
    ) -> Iterator[TensorPart]:
        """Rename the sinks, which are no part of a linear layer."""
        block = GGUF_BLOCK_NAME.fullmatch(key)
        if block and block[2] == "attn_sinks":
            yield TensorPart(name=f"model.layers.{block[1]}.self_attn.sinks")
        else:
            yield from super().gguf_parts(key, shape, config)


def _not_rounded(rotary: RotaryConfig | None) -> RotaryConfig | None:
    return rotary and replace(rotary, truncate=False)


FAMILY = GptOss()
