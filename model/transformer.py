"""Transformer: token ids and positions in, logits out, for every supported family.

The module tree is the name map of a checkpoint: model.layers.0.self_attn.q_proj.weight and so on,
as in a Hugging Face llama; families that name things otherwise are renamed when they are read.
Builds on the meta device. Holds weights only: the cache is handed in with each pass.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from cache.view import CacheView
from model import ops
from model.attention import CausalMultiHeadAttention
from model.config import ModelConfig
from model.experts import SparseMLP
from model.layers import MLP, Embedding, GatedMLP, LayerNorm, Linear, RMSNorm, RotaryEmbedding
from model.pass_context import PassContext
from model.quantization import PackedLinear
from model.rotary import RotaryConfig


def _norm(config: ModelConfig) -> RMSNorm | LayerNorm:
    make = RMSNorm if config.norm == "rms" else LayerNorm
    return make(config.hidden_size, eps=config.norm_eps)


def _mlp(config: ModelConfig, layer: int, *, dtype: torch.dtype) -> nn.Module:
    if config.experts is not None and config.is_sparse(layer):
        return SparseMLP(
            config.hidden_size, config.experts, activation=config.activation, dtype=dtype
        )
    make = GatedMLP if config.gated_mlp else MLP
    return make(
        config.hidden_size,
        config.intermediate_size,
        activation=config.activation,
        bias=config.mlp_bias,
        dtype=dtype,
    )


class DecoderLayer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); some families norm what is added, too or only.

    The names are those of the checkpoints, where post_attention_layernorm means two things: the
    norm before the MLP, or, unless norms are placed "pre", the norm of what attention adds.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        *,
        rotary: RotaryEmbedding | None,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        placement = config.norm_placement
        before, after = placement != "post", placement != "pre"
        self.residual_scale = config.residual_scale
        self.norms_attended = after
        self.input_layernorm = _norm(config) if before else None
        self.self_attn = CausalMultiHeadAttention(config, layer, rotary=rotary, dtype=dtype)
        self.post_attention_layernorm = _norm(config)
        self.pre_feedforward_layernorm = _norm(config) if before and after else None
        self.post_feedforward_layernorm = _norm(config) if after else None
        self.mlp = _mlp(config, layer, dtype=dtype)

    def forward(self, x: Tensor, context: PassContext) -> Tensor:
        """Map x (N, C) to (N, C)."""
        before_mlp = self.pre_feedforward_layernorm
        normed = x if self.input_layernorm is None else self.input_layernorm(x)
        attended: Tensor = self.self_attn(normed, context)
        if self.norms_attended:
            attended = self.post_attention_layernorm(attended)
        else:
            before_mlp = self.post_attention_layernorm
        x = self._add(x, attended)
        added: Tensor = self.mlp(x if before_mlp is None else before_mlp(x))
        if self.post_feedforward_layernorm is not None:
            added = self.post_feedforward_layernorm(added)
        return self._add(x, added)

    def _add(self, x: Tensor, added: Tensor) -> Tensor:
        return x + (added if self.residual_scale == 1.0 else added * self.residual_scale)


class Decoder(nn.Module):
    """Embeddings, layers and the last norm: all but the output matrix."""

    def __init__(self, config: ModelConfig, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.embedding_scale = config.embedding_scale
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, dtype=dtype)
        self.position_embeddings = (
            Embedding(config.max_position_embeddings, config.hidden_size, dtype=dtype)
            if config.learned_positions
            else None
        )
        tables: dict[RotaryConfig | None, RotaryEmbedding | None] = {
            rotary: RotaryEmbedding(
                rotary,
                head_dim=config.head_dim,
                num_positions=config.max_position_embeddings,
            )
            for rotary in set(config.rotaries)
            if rotary is not None
        }
        self.layers = nn.ModuleList(
            DecoderLayer(config, layer, rotary=tables.get(rotary), dtype=dtype)
            for layer, rotary in enumerate(config.rotaries)
        )
        self.norm = _norm(config)

    def forward(self, input_ids: Tensor, context: PassContext) -> Tensor:
        """Return the hidden states (N, C) before the last norm."""
        x = self.embed(input_ids, context.positions)
        for layer in self.layers:
            x = layer(x, context)
        return x

    def embed(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Return what the first layer reads (N, C)."""
        x: Tensor = self.embed_tokens(input_ids)
        if self.embedding_scale != 1.0:
            x = x * self.embedding_scale
        if self.position_embeddings is not None:
            x = x + self.position_embeddings(positions)
        return x


class Transformer(nn.Module):
    """A decoder-only language model.

    Args:
        config: What it is made of.
        dtype: Of the matrices, by default what the configuration says. Norm weights and biases
            are float32 always.
    """

    def __init__(self, config: ModelConfig, *, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        if dtype is None:
            dtype = torch.float32 if config.weights_dtype == "float32" else torch.bfloat16
        self.config = config
        self.model = Decoder(config, dtype=dtype)
        self.lm_head = (
            None
            if config.tie_word_embeddings
            else Linear(config.hidden_size, config.vocab_size, bias=False, dtype=dtype)
        )

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        kv: CacheView | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Compute the logits of the tokens that follow.

        Args:
            input_ids: (N,) int64 token ids of a flat batch.
            positions: (N,) int64 positions of these tokens in their sequences, each below
                config.max_position_embeddings.
            kv: What may be written to the cache and seen of it. None takes the N tokens as one
                whole sequence and computes everything differentiably.
            rows: (R,) int64 which of the N rows are wanted; None is all of them.

        Returns:
            (R, V) float32 logits.
        """
        hidden = self.hidden_states(input_ids, PassContext(positions, kv))
        return self.logits(hidden if rows is None else hidden.index_select(0, rows))

    def hidden_states(self, input_ids: Tensor, context: PassContext) -> Tensor:
        """Run all layers, writing keys and values: (N, C), of which `logits` takes any rows."""
        hidden: Tensor = self.model(input_ids, context)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute the logits (R, V), float32, of hidden states (R, C)."""
        x = self.model.norm(hidden)
        if self.lm_head is None:
            logits = ops.linear(x, self.model.embed_tokens.weight)
        else:
            logits = self.lm_head(x)
        logits = logits.float()
        if self.config.logit_scale != 1.0:
            logits = logits * self.config.logit_scale
        return ops.soft_cap(logits, self.config.logit_cap)

    def named_weights(self) -> Iterator[tuple[str, ops.Matrix]]:
        """Every parameter by its name in a checkpoint, packed matrices included."""
        yield from self.named_parameters()
        for name, module in self.named_modules():
            weight = getattr(module, "weight", None)
            if isinstance(weight, PackedLinear):
                yield f"{name}.weight", weight

    def set_weight(self, name: str, weight: ops.Matrix) -> None:
        """Put a tensor, or a matrix packed for the native kernels, in a parameter's place."""
        path, _, attribute = name.rpartition(".")
        module = self.get_submodule(path)
        delattr(module, attribute)
        if isinstance(weight, Tensor):
            module.register_parameter(attribute, nn.Parameter(weight, requires_grad=False))
        else:
            setattr(module, attribute, weight)

    def extend_tables(self, num_positions: int) -> None:
        """Make the rotary tables reach so many positions, if they do not yet."""
        for module in self.modules():
            if isinstance(module, RotaryEmbedding) and module.num_positions < num_positions:
                module.num_positions = num_positions
                module.reset_tables(module.cos.device)

    def reset_tables(self, device: torch.device) -> None:
        """Make the rotary tables on a device; needed only after `to_empty` has emptied them."""
        for module in self.modules():
            if isinstance(module, RotaryEmbedding):
                module.reset_tables(device)
