"""Phi-3: llama with fused matrices, long rotary factors, and heads that are turned in part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

from model.config import ModelConfig
from model.families.family import GGUF_BLOCK_NAME, Family
from model.families.fields import Fields
from model.families.fused import split_gate_up, split_qkv
from model.families.gguf_fields import gguf_window
from model.families.hf_fields import FULL, SLIDING, hf_uniform_layer_types
from model.families.rotary_fields import with_gguf_dimensions, with_longrope_vectors
from model.families.tensor_parts import GGUFTensors, TensorPart


class Phi3(Family):
    """Phi-3, Phi-3.5 and Phi-4, the mini ones included."""

    name = "phi3"
    gguf_name = "phi3"
    turns_parts: ClassVar[bool] = True
    hf_defaults: ClassVar[Mapping[str, object]] = {
        "rms_norm_eps": 1e-5,
        "original_max_position_embeddings": 4096,
    }

    def hf_layer_types(self, fields: Fields, *, num_layers: int) -> list[str]:
        """Every layer has the window, if there is one."""
        kind = SLIDING if "sliding_window" in fields else FULL
        return hf_uniform_layer_types(fields, kind, num_layers=num_layers)

    def read_gguf(self, fields: Fields, tensors: GGUFTensors) -> ModelConfig:
        """Read GGUF metadata."""
        config = super().read_gguf(fields, tensors)
        rotary = config.rotaries[0]
        assert rotary is not None
        rotary = with_longrope_vectors(
            with_gguf_dimensions(fields, rotary), fields, tensors.vectors
        )
        return replace(
            config,
            rotaries=(rotary,) * config.num_layers,
            windows=(gguf_window(fields),) * config.num_layers,
        )

    def hf_parts(
        self, key: str, shape: tuple[int, ...], config: ModelConfig
    ) -> Iterator[TensorPart]:
        """Split the fused matrices."""
        prefix, _, rest = key.partition("self_attn.qkv_proj.")
        if rest:
            yield from split_qkv(f"{prefix}self_attn.", rest, shape, config, stored=key)
            return
        prefix, _, rest = key.partition("mlp.gate_up_proj.")
        if rest:
            yield from split_gate_up(f"{prefix}mlp.", rest, shape, config, stored=key)
            return
        yield TensorPart(name=key)

    def gguf_parts(
        self, key: str, shape: tuple[int, ...], config: ModelConfig
    ) -> Iterator[TensorPart]:
        """Split the fused matrices, of which ffn_up holds the gate, too."""
        if key.startswith("rope_factors_"):
            return
        block = GGUF_BLOCK_NAME.fullmatch(key)
        prefix = f"model.layers.{block[1]}." if block else ""
        if block and block[2] == "attn_qkv":
            yield from split_qkv(f"{prefix}self_attn.", block[3], shape, config, stored=key)
        elif block and block[2] == "ffn_up":
            yield from split_gate_up(f"{prefix}mlp.", block[3], shape, config, stored=key)
        else:
            yield from super().gguf_parts(key, shape, config)


FAMILY = Phi3()
