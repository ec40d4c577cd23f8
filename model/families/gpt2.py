"""GPT-2: learned positions, layer norms, no gate, and matrices stored as (in, out)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

from model.config import ModelConfig
from model.families.family import GGUF_BLOCK_NAME, Family
from model.families.fields import MAX_LAYERS, Fields
from model.families.gguf_fields import gguf_vocab_size
from model.families.hf_fields import hf_activation, hf_dtype
from model.families.tensor_parts import GGUFTensors, TensorPart

_NAMES: Mapping[str, str] = {
    "wte": "model.embed_tokens",
    "wpe": "model.position_embeddings",
    "ln_f": "model.norm",
}
_IN_BLOCK: Mapping[str, str] = {
    "ln_1": "input_layernorm",
    "attn.c_proj": "self_attn.o_proj",
    "ln_2": "post_attention_layernorm",
    "mlp.c_fc": "mlp.up_proj",
    "mlp.c_proj": "mlp.down_proj",
}
_BLOCK = re.compile(r"h\.(\d+)\.(.+)\.(weight|bias)")
_FUSED, _GGUF_FUSED = "attn.c_attn", "attn_qkv"
"""Queries, keys and values in one."""


class GPT2(Family):
    """GPT-2."""

    name = "gpt2"
    gguf_name = "gpt2"
    gguf_top_level: ClassVar[Mapping[str, str]] = {
        **Family.gguf_top_level,
        "position_embd": "model.position_embeddings",
    }

    def read_hf(self, fields: Fields) -> ModelConfig:
        """Read a config.json."""
        for name in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
            fields.refuse(name, neutral=(False,))
        hidden_size, num_heads = fields.integer("n_embd", 768), fields.integer("n_head", 12)
        if hidden_size % num_heads:
            raise fields.error("n_embd", hidden_size, f"a multiple of n_head, {num_heads}")
        num_layers = fields.integer("n_layer", 12, maximum=MAX_LAYERS)
        head_dim = hidden_size // num_heads
        scaled = fields.flag("scale_attn_weights", default=True)
        return ModelConfig(
            vocab_size=fields.integer("vocab_size", 50257),
            hidden_size=hidden_size,
            intermediate_size=fields.integer("n_inner", 4 * hidden_size),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=head_dim,
            max_position_embeddings=fields.integer("n_positions", 1024),
            attention_scale=head_dim**-0.5 if scaled else 1.0,
            norm_eps=fields.number("layer_norm_epsilon", 1e-5),
            activation=hf_activation(fields, "activation_function", "gelu_new"),
            tie_word_embeddings=fields.flag("tie_word_embeddings", default=True),
            weights_dtype=hf_dtype(fields),
            architecture=self.name,
            windows=(None,) * num_layers,
            rotaries=(None,) * num_layers,
            norm="layer",
            gated_mlp=False,
            qkv_bias=True,
            output_bias=True,
            mlp_bias=True,
            learned_positions=True,
        )

    def read_gguf(self, fields: Fields, tensors: GGUFTensors) -> ModelConfig:
        """Read GGUF metadata."""
        del tensors
        hidden_size = fields.integer("embedding_length")
        num_heads = fields.integer("attention.head_count")
        if hidden_size % num_heads:
            raise fields.error("embedding_length", hidden_size, f"a multiple of {num_heads} heads")
        num_layers = fields.integer("block_count", maximum=MAX_LAYERS)
        return ModelConfig(
            architecture=self.name,
            vocab_size=gguf_vocab_size(fields),
            hidden_size=hidden_size,
            intermediate_size=fields.integer("feed_forward_length"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=hidden_size // num_heads,
            max_position_embeddings=fields.integer("context_length"),
            windows=(None,) * num_layers,
            rotaries=(None,) * num_layers,
            attention_scale=(hidden_size // num_heads) ** -0.5,
            norm="layer",
            norm_eps=fields.number("attention.layer_norm_epsilon"),
            activation="gelu_tanh",
            gated_mlp=False,
            qkv_bias=True,
            output_bias=True,
            mlp_bias=True,
            learned_positions=True,
        )

    def hf_parts(
        self, key: str, shape: tuple[int, ...], config: ModelConfig
    ) -> Iterator[TensorPart]:
        """Rename, turn the (in, out) matrices over and split queries, keys and values."""
        key = key.removeprefix("transformer.")
        block = _BLOCK.fullmatch(key)
        if not block:
            part, _, kind = key.rpartition(".")
            yield TensorPart(name=f"{_NAMES[part]}.{kind}" if part in _NAMES else key)
            return
        layer, part, kind = block.groups()
        is_matrix = len(shape) == 2
        if part == _FUSED and shape[-1] == 3 * config.hidden_size:
            yield from _split(layer, kind, config, transposed=is_matrix)
            return
        known = _IN_BLOCK.get(part)
        name = f"model.layers.{layer}.{known}.{kind}" if known else key
        yield TensorPart(name=name, transposed=is_matrix)

    def gguf_parts(
        self, key: str, shape: tuple[int, ...], config: ModelConfig
    ) -> Iterator[TensorPart]:
        """Split queries, keys and values."""
        block = GGUF_BLOCK_NAME.fullmatch(key)
        if block and block[2] == _GGUF_FUSED and shape[0] == 3 * config.hidden_size:
            yield from _split(block[1], block[3], config, transposed=False)
        else:
            yield from super().gguf_parts(key, shape, config)


def _split(layer: str, kind: str, config: ModelConfig, *, transposed: bool) -> Iterator[TensorPart]:
    width = config.hidden_size
    for i, letter in enumerate("qkv"):
        yield TensorPart(
            name=f"model.layers.{layer}.self_attn.{letter}_proj.{kind}",
            transposed=transposed,
            rows=slice(i * width, (i + 1) * width),
        )


FAMILY = GPT2()
