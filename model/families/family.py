"""Family: how the files of one architecture are read, with llama's answers where none is given.

Turns fields into a ModelConfig, and names of stored tensors into those of the Transformer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

from model.config import ModelConfig
from model.families.experts_fields import GGUF_EXPERT_NAMES, GGUF_SPARSE_NAMES, gguf_experts
from model.families.fields import Fields
from model.families.gguf_fields import ROPE_FACTORS, gguf_shape
from model.families.hf_fields import (
    FULL,
    hf_activation,
    hf_rotaries,
    hf_shape,
    hf_uniform_layer_types,
    hf_windows,
)
from model.families.rotary_fields import gguf_rotary
from model.families.tensor_parts import GGUFTensors, TensorPart

GGUF_BLOCK_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


class Family:
    """One architecture; subclasses say in what it differs from llama."""

    name: str
    """The model_type of a config.json, and ModelConfig.architecture."""
    gguf_name: str | None = None
    """general.architecture of a GGUF file; None where no such files are read."""
    hf_defaults: ClassVar[Mapping[str, object]] = {}
    """Fields that a config.json may leave out; null is something else."""
    gguf_renormalizes: ClassVar[bool] = True
    """Whether a GGUF file that does not say takes the softmax over the chosen experts alone."""
    turns_parts: ClassVar[bool] = False
    """Whether only some dimensions of each head may be turned by its position."""
    gguf_top_level: ClassVar[Mapping[str, str]] = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "output": "lm_head",
    }
    gguf_in_block: ClassVar[Mapping[str, str]] = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        **GGUF_SPARSE_NAMES,
    }

    def read_hf(self, fields: Fields) -> ModelConfig:
        """Read the fields of a config.json.

        Raises:
            ConfigError: A field is missing, malformed, or asks for what is not supported.
        """
        fields = fields.over(self.hf_defaults)
        shape = hf_shape(fields)
        types = self.hf_layer_types(fields, num_layers=shape["num_layers"])
        return ModelConfig(
            **shape,
            architecture=self.name,
            windows=hf_windows(fields, types),
            rotaries=hf_rotaries(fields, types, partial=self.turns_parts),
            attention_scale=shape["head_dim"] ** -0.5,
            activation=hf_activation(fields, "hidden_act", "silu"),
            tie_word_embeddings=fields.flag("tie_word_embeddings", default=False),
        )

    def hf_layer_types(self, fields: Fields, *, num_layers: int) -> list[str]:
        """Read which layers of a config.json have a window."""
        return hf_uniform_layer_types(fields, FULL, num_layers=num_layers)

    def read_gguf(self, fields: Fields, tensors: GGUFTensors) -> ModelConfig:
        """Read the metadata of a GGUF file.

        Args:
            fields: Those below the family's prefix.
            tensors: What the file's tensors add.

        Raises:
            ConfigError: A key is missing, malformed, or asks for what is not supported.
        """
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            fields.refuse(name, neutral=(0.0,))
        experts = gguf_experts(fields, renormalize=self.gguf_renormalizes)
        if experts is not None:
            fields = fields.over({f"{fields.prefix}feed_forward_length": experts.intermediate_size})
        shape = gguf_shape(fields)
        if not self.turns_parts:
            fields.refuse("rope.dimension_count", neutral=(shape["head_dim"],))
        rotary = gguf_rotary(fields, frequency_factors=tensors.vectors.get(ROPE_FACTORS, ()))
        return ModelConfig(
            **shape,
            architecture=self.name,
            windows=(None,) * shape["num_layers"],
            rotaries=(rotary,) * shape["num_layers"],
            attention_scale=fields.number("attention.scale", shape["head_dim"] ** -0.5),
            experts=experts,
            sparse_layers=() if experts is None else (True,) * shape["num_layers"],
        )

    def hf_parts(
        self, key: str, shape: tuple[int, ...], config: ModelConfig
    ) -> Iterator[TensorPart]:
        """Name the tensors of the Transformer inside one of a safetensors file; none drops it."""
        del shape, config
        yield TensorPart(name=key)

    def gguf_parts(
        self, key: str, shape: tuple[int, ...], config: ModelConfig
    ) -> Iterator[TensorPart]:
        """Name the tensors of the Transformer inside one of a GGUF file; none drops it."""
        block = GGUF_BLOCK_NAME.fullmatch(key)
        if block and block[2] in GGUF_EXPERT_NAMES:
            layer, part, kind = block.groups()
            for expert in range(shape[0]):
                name = f"experts.{expert}.{GGUF_EXPERT_NAMES[part]}.{kind}"
                yield TensorPart(name=f"model.layers.{layer}.mlp.{name}", expert=expert)
        elif key != ROPE_FACTORS or not any(config.rotaries):
            yield TensorPart(name=self.gguf_canonical(key))

    def gguf_canonical(self, key: str) -> str:
        """Return the Transformer's name of a GGUF file's tensor, its own if there is none."""
        block = GGUF_BLOCK_NAME.fullmatch(key)
        if block:
            layer, part, kind = block.groups()
            known = self.gguf_in_block.get(part)
            return f"model.layers.{layer}.{known}.{kind}" if known else key
        part, _, kind = key.rpartition(".")
        return f"{self.gguf_top_level[part]}.{kind}" if part in self.gguf_top_level else key
