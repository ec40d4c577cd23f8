"""Gemma 3: norms around both blocks, five local layers to each global one, two rotary bases."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

from model.config import ModelConfig
from model.families.fields import Fields
from model.families.gemma import Gemma
from model.families.gguf_fields import gguf_window, gguf_window_pattern
from model.families.hf_fields import (
    FULL,
    SLIDING,
    hf_activation,
    hf_layer_types,
    hf_shape,
    hf_windows,
)
from model.families.rotary_fields import hf_rotary
from model.families.tensor_parts import GGUFTensors, TensorPart
from model.rotary import RotaryConfig

_TEXT_PREFIXES: Mapping[str, str] = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
}
"""Where a multimodal gemma3 keeps its text model, in files of either generation."""
_OTHER_MODALITIES = re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\..*")


class Gemma3(Gemma):
    """Gemma 3, and the text part of a multimodal one."""

    name = "gemma3_text"
    gguf_name = "gemma3"
    hf_defaults: ClassVar[Mapping[str, object]] = {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
    }

    def read_hf(self, fields: Fields) -> ModelConfig:
        """Read a config.json."""
        fields = fields.over(self.hf_defaults)
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            fields.refuse(name, neutral=())
        fields.refuse("use_bidirectional_attention", neutral=(False,))
        shape = hf_shape(fields)
        types = self.hf_layer_types(fields, num_layers=shape["num_layers"])
        bias = fields.flag("attention_bias", default=False)
        by_type = _hf_rotaries(fields)
        return ModelConfig(
            **shape,
            architecture=self.name,
            windows=hf_windows(fields, types),
            rotaries=tuple(by_type[kind] for kind in types),
            attention_scale=fields.number("query_pre_attn_scalar") ** -0.5,
            activation=hf_activation(fields, "hidden_activation", "gelu_pytorch_tanh"),
            qkv_bias=bias,
            output_bias=bias,
            qk_norm="head",
            norm_placement="sandwich",
            tie_word_embeddings=fields.flag("tie_word_embeddings", default=True),
            embedding_scale=shape["hidden_size"] ** 0.5,
        )

    def hf_layer_types(self, fields: Fields, *, num_layers: int) -> list[str]:
        """By default all layers but every sixth have the window."""
        pattern = "sliding_window_pattern"
        every = fields.integer(pattern if pattern in fields else f"_{pattern}", 6)
        return hf_layer_types(
            fields, [SLIDING if i % every else FULL for i in range(1, num_layers + 1)]
        )

    def read_gguf(self, fields: Fields, tensors: GGUFTensors) -> ModelConfig:
        """Read GGUF metadata."""
        config = super().read_gguf(fields, tensors)
        num_layers, scale = config.num_layers, config.attention_scale
        if num_layers == 62:
            # The 27B model scales by its hidden size per head, and its files do not say so.
            default = (config.hidden_size // config.num_heads) ** -0.5
            scale = fields.number("attention.scale", default)
        window = gguf_window(fields)
        pattern = gguf_window_pattern(fields, num_layers=num_layers, every=6)
        is_local = [window is not None and flag for flag in pattern]
        local = RotaryConfig(theta=fields.number("rope.freq_base_swa", 10_000.0))
        return replace(
            config,
            windows=tuple(window if flag else None for flag in is_local),
            rotaries=tuple(
                local if flag else rotary
                for flag, rotary in zip(is_local, config.rotaries, strict=True)
            ),
            attention_scale=scale,
            activation="gelu_tanh",
            qk_norm="head",
            norm_placement="sandwich",
            embedding_scale=config.hidden_size**0.5,
        )

    def hf_parts(
        self, key: str, shape: tuple[int, ...], config: ModelConfig
    ) -> Iterator[TensorPart]:
        """Take the text model out of a multimodal one."""
        if _OTHER_MODALITIES.fullmatch(key):
            return
        name = key
        for theirs, ours in _TEXT_PREFIXES.items():
            if name.startswith(theirs):
                name = ours + name.removeprefix(theirs)
        yield from super().hf_parts(name, shape, config)


def _hf_rotaries(fields: Fields) -> dict[str, RotaryConfig]:
    """Read the two bases; scaling given the old way stretches the global layers only."""
    parameters = fields.within("rope_parameters")
    if parameters.values and not any(kind in parameters for kind in (FULL, SLIDING)):
        raise fields.error("rope_parameters", parameters.values, f"entries {FULL} and {SLIDING}")
    scaling = fields.within("rope_scaling")
    return {
        FULL: hf_rotary(
            fields,
            parameters=scaling if scaling.values else parameters.within(FULL),
            theta=parameters.within(FULL).number(
                "rope_theta", fields.number("rope_theta", 1_000_000.0)
            ),
        ),
        SLIDING: hf_rotary(
            fields,
            parameters=parameters.within(SLIDING),
            theta=fields.number("rope_local_base_freq", 10_000.0),
        ),
    }


FAMILY = Gemma3()
