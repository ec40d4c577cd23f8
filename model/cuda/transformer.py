"""CudaTransformer: the decoder of transformer.py on a GPU, in about ten launches a layer.

Takes over a Transformer's weights: those that read the same activations are fused, and the
Transformer keeps views of them. Products are cuBLAS's, the rest Triton kernels. It promises what
cuBLAS does: a row's result varies with the rows beside it by rounding in the activations' dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cache.pool import KVCachePool
from cache.view import AttentionBackend
from model.attention import CausalMultiHeadAttention
from model.config import ModelConfig
from model.cuda.kernels import layer_kernels
from model.cuda.matrices import DenseMatrix, DeviceMatrix, fused
from model.cuda.operations import EmbeddingTable, NormWeights, activated, power_of_two
from model.layers import GatedMLP, LayerNorm, Linear, RMSNorm
from model.pass_context import PassTensors
from model.transformer import DecoderLayer, Transformer


class HiddenStates(NamedTuple):
    """What the layers make of a batch."""

    hidden: Tensor
    """(N, C) before the last norm."""
    normed: Tensor
    """(N, C) after it."""


@dataclass(frozen=True, slots=True)
class CudaLayer:
    """One layer's weights, fused."""

    index: int
    attention: CausalMultiHeadAttention
    input_norm: NormWeights
    qkv: DeviceMatrix
    o: DeviceMatrix
    attention_out_norm: NormWeights | None
    """Of what attention adds, in families that have one."""
    mlp_norm: NormWeights
    gate_up: DeviceMatrix
    """Or only up, without a gate."""
    down: DeviceMatrix
    mlp_out_norm: NormWeights | None


class CudaTransformer:
    """A decoder-only language model on a GPU.

    Args:
        model: Its weights, on the device; matrices of one dtype.
    """

    def __init__(self, model: Transformer) -> None:
        self.config: ModelConfig = model.config
        decoder = model.model
        positions = decoder.position_embeddings
        self._layers = [
            _fuse_layer(model, layer, index)
            for index, layer in enumerate(decoder.layers)
            if isinstance(layer, DecoderLayer)
        ]
        embedding = decoder.embed_tokens.weight
        assert isinstance(embedding, Tensor)
        position_weight = None if positions is None else positions.weight
        assert position_weight is None or isinstance(position_weight, Tensor)
        self._embedding = EmbeddingTable(embedding, decoder.embedding_scale, position_weight)
        self._norm = _norm(decoder.norm)
        output = embedding if model.lm_head is None else model.lm_head.weight
        assert isinstance(output, Tensor)
        self._output = DenseMatrix(output)

    def forward(
        self, tensors: PassTensors, pool: KVCachePool, backend: AttentionBackend
    ) -> HiddenStates:
        """Run all layers, writing keys and values."""
        residual = self._embedding(tensors.input_ids, tensors.positions)
        added: Tensor | None = None
        for layer in self._layers:
            added = self._run_layer(layer, residual, added, tensors=tensors, pool=pool,
                                    backend=backend)  # fmt: skip
        return HiddenStates(residual, self._norm(residual, added))

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute the logits (R, V), float32, of hidden states (R, C) before the last norm."""
        return self.output(self._norm(hidden.contiguous()))

    def output(self, normed: Tensor) -> Tensor:
        """Compute the logits (R, V), float32, of hidden states (R, C) after the last norm."""
        return self._output.in_float32(normed)

    def _run_layer(
        self,
        layer: CudaLayer,
        residual: Tensor,
        added: Tensor | None,
        *,
        tensors: PassTensors,
        pool: KVCachePool,
        backend: AttentionBackend,
    ) -> Tensor:
        """What the layer adds to the residual, which takes in what the one before has added."""
        attended = self._attend(layer, layer.input_norm(residual, added), tensors, pool, backend)
        if layer.attention_out_norm is not None:
            attended = layer.attention_out_norm(attended)
        hidden = layer.gate_up(layer.mlp_norm(residual, attended))
        config = self.config
        out = layer.down(activated(hidden, kind=config.activation, gated=config.gated_mlp))
        return out if layer.mlp_out_norm is None else layer.mlp_out_norm(out)

    def _attend(
        self,
        layer: CudaLayer,
        x: Tensor,
        tensors: PassTensors,
        pool: KVCachePool,
        backend: AttentionBackend,
    ) -> Tensor:
        """Project x (N, C), write keys and values, and attend: (N, C)."""
        config, attention = self.config, layer.attention
        qkv = layer.qkv(x)
        rows, head_dim = len(qkv), config.head_dim
        q = torch.empty(rows, config.num_heads, head_dim, dtype=x.dtype, device=x.device)
        keys, values = pool.keys(layer.index), pool.values(layer.index)
        rotary, norms = attention.rotary, (attention.q_norm, attention.k_norm)
        unused = self._norm.weight
        q_norm, k_norm = (unused if norm is None else norm.weight for norm in norms)
        layer_kernels.turn_and_write[rows, config.num_heads + 2 * config.num_kv_heads](
            qkv, tensors.positions, tensors.layout.slots,
            unused if rotary is None else rotary.cos, unused if rotary is None else rotary.sin,
            q_norm, k_norm, q, keys, values, config.norm_eps,
            HEADS=config.num_heads, KV_HEADS=config.num_kv_heads, D=head_dim,
            HALF_ROOM=power_of_two((head_dim + 1) // 2), TURNED=rotary is not None,
            NORMED=norms[0] is not None, num_warps=1,
        )  # fmt: skip
        out = backend.attend(
            q, keys, values, tensors.layout, scale=attention.scale, window=attention.window
        )
        return layer.o(out.view(rows, -1))


def _fuse_layer(model: Transformer, layer: DecoderLayer, index: int) -> CudaLayer:
    """Fuse what reads the same activations, leaving the Transformer views of it."""
    prefix, attention, mlp = f"model.layers.{index}.", layer.self_attn, layer.mlp
    qkv = _fuse(model, [f"{prefix}self_attn.{letter}_proj" for letter in "qkv"])
    ups = ["gate_proj", "up_proj"] if isinstance(mlp, GatedMLP) else ["up_proj"]
    sandwich = layer.pre_feedforward_layernorm
    after = _norm(layer.post_attention_layernorm)
    out_norm = layer.post_feedforward_layernorm
    assert layer.input_layernorm is not None, "models without run in torch"
    return CudaLayer(
        index=index,
        attention=attention,
        input_norm=_norm(layer.input_layernorm),
        qkv=qkv,
        o=_fuse(model, [f"{prefix}self_attn.o_proj"]),
        attention_out_norm=None if sandwich is None else after,
        mlp_norm=after if sandwich is None else _norm(sandwich),
        gate_up=_fuse(model, [f"{prefix}mlp.{name}" for name in ups]),
        down=_fuse(model, [f"{prefix}mlp.down_proj"]),
        mlp_out_norm=None if out_norm is None else _norm(out_norm),
    )


def _fuse(model: Transformer, names: list[str]) -> DenseMatrix:
    """One matrix of the named ones."""
    linears = [model.get_submodule(name) for name in names]
    weights, biases = [], []
    for linear in linears:
        assert isinstance(linear, Linear)
        assert isinstance(linear.weight, Tensor)
        weights.append(linear.weight.detach())
        biases.append(linear.bias)
    matrix = fused(weights, biases)
    start = 0
    for name, weight in zip(names, weights, strict=True):
        model.set_weight(f"{name}.weight", matrix.weight[start : start + len(weight)])
        start += len(weight)
    return matrix


def _norm(norm: RMSNorm | LayerNorm) -> NormWeights:
    bias = norm.bias if isinstance(norm, LayerNorm) else None
    return NormWeights(norm.weight, bias, norm.eps)
