"""Gemma 2: soft caps of scores and logits, every other layer local."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from model.config import ModelConfig
from model.families.fields import Fields
from model.families.gemma import Gemma
from model.families.gguf_fields import gguf_window, gguf_window_pattern
from model.families.hf_fields import FULL, SLIDING, hf_activation, hf_layer_types
from model.families.tensor_parts import GGUFTensors


class Gemma2(Gemma):
    """Gemma 2."""

    name = "gemma2"
    gguf_name = "gemma2"
    hf_defaults: ClassVar[Mapping[str, object]] = {
        "vocab_size": 256_000,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 8192,
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
    }

    def read_hf(self, fields: Fields) -> ModelConfig:
        """Read a config.json."""
        fields = fields.over(self.hf_defaults)
        fields.refuse("use_bidirectional_attention", neutral=(False,))
        bias = fields.flag("attention_bias", default=False)
        config = super().read_hf(fields.over({"hidden_act": "gelu_pytorch_tanh"}))
        return replace(
            config,
            attention_scale=fields.number("query_pre_attn_scalar") ** -0.5,
            attention_cap=_cap(fields, "attn_logit_softcapping"),
            logit_cap=_cap(fields, "final_logit_softcapping"),
            activation=hf_activation(fields, "hidden_activation", "gelu_pytorch_tanh"),
            qkv_bias=bias,
            output_bias=bias,
            norm_placement="sandwich",
            embedding_scale=config.hidden_size**0.5,
        )

    def hf_layer_types(self, fields: Fields, *, num_layers: int) -> list[str]:
        """The first layer and every second after it have the window."""
        return hf_layer_types(fields, [FULL if i % 2 else SLIDING for i in range(num_layers)])

    def read_gguf(self, fields: Fields, tensors: GGUFTensors) -> ModelConfig:
        """Read GGUF metadata."""
        caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
        attention_cap, logit_cap = (
            fields.number(name, default, minimum=0.0) or None for name, default in caps.items()
        )
        config = super().read_gguf(fields.without(caps), tensors)
        # The 27B model scales by its hidden size per head, and its files do not say so.
        is_27b = config.num_layers == 46
        size = config.hidden_size // config.num_heads if is_27b else config.head_dim
        window = gguf_window(fields)
        pattern = gguf_window_pattern(fields, num_layers=config.num_layers, every=2)
        return replace(
            config,
            windows=tuple(window if flag else None for flag in pattern),
            attention_scale=fields.number("attention.scale", size**-0.5),
            attention_cap=attention_cap,
            logit_cap=logit_cap,
            activation="gelu_tanh",
            norm_placement="sandwich",
            embedding_scale=config.hidden_size**0.5,
        )


def _cap(fields: Fields, name: str) -> float | None:
    return fields.number(name) if name in fields else None


FAMILY = Gemma2()
