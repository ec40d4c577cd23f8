"""NativeTransformer: the decoder of transformer.py, run by the native kernels in one call a step.

Same names, same inputs, same outputs as Transformer, from packed weights on the CPU. What it
promises beyond it: a row's hidden state and logits have the same bits alone and in any company,
whatever the chunking of its prompt, the placement of its blocks and the number of threads.
Holds weights and scratch memory; the cache is handed in with each pass.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from cache.pool import KVCachePool
from cache.view import CacheView
from model.config import ExpertsConfig, ModelConfig
from model.native_abi import (
    BatchStruct,
    CacheLayerStruct,
    ExpertsStruct,
    LayerStruct,
    MatrixStruct,
    MLPStruct,
    ModelStruct,
    NormStruct,
    RotaryStruct,
    StepStruct,
)
from model.native_calls import BoundLogits, BoundPass
from model.native_library import NativeKernels
from model.native_support import NATIVE_ACTIVATIONS
from model.pass_context import PassContext, PassTensors
from model.quantization import PackedLinear
from model.rotary import RotaryConfig

Weight = PackedLinear | Tensor

CACHE_FORMATS: Mapping[torch.dtype, int] = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
"""kv_cache_format, by the type of a pool's numbers."""

EMBEDDING = "model.embed_tokens.weight"
POSITIONS = "model.position_embeddings.weight"
OUTPUT = "lm_head.weight"


class NativeTransformer:
    """A decoder-only language model on the CPU.

    Args:
        config: What it is made of.
        weights: Every parameter of Transformer by its name: matrices as PackedLinear, norm
            weights and biases as float32 tensors. Without lm_head.weight the embedding computes
            the logits; it is kept once.
        kernels: What computes.

    Raises:
        KeyError: A weight is missing.
    """

    def __init__(
        self, config: ModelConfig, weights: Mapping[str, Weight], *, kernels: NativeKernels
    ) -> None:
        self.config = config
        self.weights = dict(weights)
        self.kernels = kernels
        builder = _SpecBuilder(config, self.weights)
        self._kept_alive = builder.kept_alive
        self._model: int = kernels.library.kv_model_create(ctypes.byref(builder.spec))

    @property
    def num_bytes(self) -> int:
        """Memory of the weights."""
        return sum(weight.nbytes for weight in self.weights.values())

    def __call__(
        self, input_ids: Tensor, positions: Tensor, kv: CacheView, rows: Tensor | None = None
    ) -> Tensor:
        """Compute logits; see `forward`."""
        return self.forward(input_ids, positions, kv, rows)

    def forward(
        self, input_ids: Tensor, positions: Tensor, kv: CacheView, rows: Tensor | None = None
    ) -> Tensor:
        """Compute the logits of the tokens that follow.

        Args:
            input_ids: (N,) int64 token ids of a flat batch.
            positions: (N,) int64 positions of these tokens in their sequences.
            kv: What may be written to the cache and seen of it.
            rows: (R,) int64 which of the N rows are wanted; None is all of them.

        Returns:
            (R, V) float32 logits.

        Raises:
            ValueError: An index of the batch is out of its bounds.
        """
        hidden = self.hidden_states(input_ids, PassContext(positions, kv))
        return self.logits(hidden if rows is None else hidden.index_select(0, rows))

    def hidden_states(self, input_ids: Tensor, context: PassContext) -> Tensor:
        """Run all layers, writing keys and values: (N, C), of which `logits` takes any rows."""
        assert context.kv is not None, "there are no kernels for a pass without a cache"
        hidden = torch.empty(input_ids.shape[0], self.config.hidden_size)
        tensors = PassTensors(input_ids, context.positions, context.kv.layout)
        return self.bind(tensors, pool=context.kv.pool, out=hidden)()

    def bind(self, tensors: PassTensors, *, pool: KVCachePool, out: Tensor) -> BoundPass:
        """Ready the layers for this memory, for whatever batch it will hold when they are run.

        Args:
            tensors: The memory of the batch.
            pool: Where keys and values are written and read.
            out: (N, C) float32, where the hidden states go.
        """
        assert out.shape == (tensors.input_ids.shape[0], self.config.hidden_size)
        assert out.is_contiguous()
        step = _describe_step(tensors, pool, config=self.config)
        run = partial(
            self.kernels.library.kv_model_forward,
            self._model,
            self.kernels.pool,
            ctypes.byref(step),
            out.data_ptr(),
        )
        return BoundPass(run, out, kept_alive=(self, step, tensors, pool))

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Compute the logits (R, V), float32, of hidden states (R, C), in `out` if it is given."""
        if out is None:
            out = torch.empty(hidden.shape[0], self.config.vocab_size)
        return self.bind_logits(hidden.contiguous(), out=out)()

    def bind_logits(self, hidden: Tensor, *, out: Tensor) -> BoundLogits:
        """Ready the output layer for hidden states (R, C) and logits (R, V) in this memory."""
        assert out.shape == (hidden.shape[0], self.config.vocab_size)
        assert hidden.is_contiguous()
        assert out.is_contiguous()
        run = partial(
            self.kernels.library.kv_model_logits,
            self._model,
            self.kernels.pool,
            hidden.data_ptr(),
            hidden.shape[0],
            out.data_ptr(),
        )
        return BoundLogits(run, out, kept_alive=(self, hidden))

    def __del__(self) -> None:
        """Give the scratch memory back."""
        model = getattr(self, "_model", None)
        if model:
            self._model = 0
            self.kernels.library.kv_model_destroy(model)


def _describe_step(tensors: PassTensors, pool: KVCachePool, *, config: ModelConfig) -> StepStruct:
    """Where the kernels find a batch and its pool."""
    input_ids, positions, layout = tensors
    storage = pool.storage
    assert storage[0, 0].is_contiguous()
    assert storage.shape[3] >= 16, "the kernels take 16 neighbouring keys at a time"
    assert layout.block_table.stride(1) == 1
    _, num_layers, num_blocks, block_size, kv_heads, _ = storage.shape
    assert (num_layers, kv_heads, pool.head_dim) == (
        config.num_layers,
        config.num_kv_heads,
        config.head_dim,
    )
    return StepStruct(
        tokens=len(input_ids),
        input_ids=_address(input_ids),
        positions=_address(positions),
        slots=_address(layout.slots),
        batch=BatchStruct(
            requests=len(layout.key_lengths),
            query_starts=_address(layout.query_starts),
            key_lengths=_address(layout.key_lengths),
            block_table=layout.block_table.data_ptr(),
            max_blocks=layout.block_table.stride(0),
        ),
        first_layer=CacheLayerStruct(
            keys=storage.data_ptr(),
            values=storage.data_ptr() + storage.stride(0) * storage.itemsize,
            format=CACHE_FORMATS[storage.dtype],
            block_size=block_size,
            kv_heads=kv_heads,
            head_size=pool.head_dim,
        ),
        layer_bytes=storage.stride(1) * storage.itemsize,
        blocks=num_blocks,
    )


def _address(indices: Tensor) -> int:
    """The address of a contiguous int64 list."""
    assert indices.dtype == torch.int64
    assert indices.is_contiguous()
    return indices.data_ptr()


class _SpecBuilder:
    """Translates a configuration and named weights into the kernels' description of a model.

    Attributes:
        spec: The description.
        kept_alive: What it points to beside the weights.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, Weight]) -> None:
        self._config = config
        self._weights = weights
        self.kept_alive: list[object] = []
        rotaries = list(dict.fromkeys(filter(None, config.rotaries)))
        layers = (LayerStruct * config.num_layers)(
            *(self._layer(index) for index in range(config.num_layers))
        )
        for layer, rotary in zip(layers, config.rotaries, strict=True):
            layer.rotary = -1 if rotary is None else rotaries.index(rotary)
        embedding = self._matrix(EMBEDDING)
        self.spec = ModelStruct(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_size=config.head_dim,
            layer_count=config.num_layers,
            rotary_count=len(rotaries),
            layers=layers,
            rotaries=(RotaryStruct * len(rotaries))(*map(self._rotary, rotaries)),
            embedding=embedding,
            output=self._matrix(OUTPUT) if OUTPUT in weights else embedding,
            position_embedding=self._matrix(POSITIONS)
            if config.learned_positions
            else MatrixStruct(),
            final=self._norm("model.norm"),
            norm_epsilon=config.norm_eps,
            attention_scale=config.attention_scale,
            embedding_scale=config.embedding_scale,
            residual_scale=config.residual_scale,
            logit_scale=config.logit_scale,
            attention_cap=config.attention_cap or 0.0,
            logit_cap=config.logit_cap or 0.0,
            is_layer_norm=int(config.norm == "layer"),
            normalises_rows=int(config.qk_norm == "row"),
            activation=NATIVE_ACTIVATIONS.index(config.activation),
        )

    def _rotary(self, rotary: RotaryConfig) -> RotaryStruct:
        frequencies = rotary.inverse_frequencies(self._config.head_dim).float().contiguous()
        self.kept_alive.append(frequencies)
        return RotaryStruct(frequencies.data_ptr(), len(frequencies), rotary.attention_factor)

    def _layer(self, index: int) -> LayerStruct:
        config, prefix = self._config, f"model.layers.{index}."
        attention = f"{prefix}self_attn."
        placement = config.norm_placement
        after_attention = self._norm(f"{prefix}post_attention_layernorm")
        before_mlp = after_attention if placement == "pre" else NormStruct()
        if placement == "sandwich":
            before_mlp = self._norm(f"{prefix}pre_feedforward_layernorm")
        after_mlp = f"{prefix}post_feedforward_layernorm"
        sinks = self._vector(f"{attention}sinks")
        layer = LayerStruct(
            q=self._matrix(f"{attention}q_proj.weight"),
            k=self._matrix(f"{attention}k_proj.weight"),
            v=self._matrix(f"{attention}v_proj.weight"),
            o=self._matrix(f"{attention}o_proj.weight"),
            input=NormStruct() if placement == "post" else self._norm(f"{prefix}input_layernorm"),
            before_mlp=before_mlp,
            attention_out=NormStruct() if placement == "pre" else after_attention,
            mlp_out=NormStruct() if placement == "pre" else self._norm(after_mlp),
            q_norm=self._norm(f"{attention}q_norm") if config.qk_norm else NormStruct(),
            k_norm=self._norm(f"{attention}k_norm") if config.qk_norm else NormStruct(),
            sinks=None if sinks is None else sinks.data_ptr(),
            window=config.windows[index] or 0,
        )
        if config.experts is not None and config.is_sparse(index):
            layer.experts = ctypes.pointer(self._experts(f"{prefix}mlp.", config.experts))
        else:
            layer.mlp = self._mlp(f"{prefix}mlp.")
        return layer

    def _mlp(self, prefix: str) -> MLPStruct:
        gated = self._config.gated_mlp
        return MLPStruct(
            gate=self._matrix(f"{prefix}gate_proj.weight") if gated else MatrixStruct(),
            up=self._matrix(f"{prefix}up_proj.weight"),
            down=self._matrix(f"{prefix}down_proj.weight"),
        )

    def _experts(self, prefix: str, experts: ExpertsConfig) -> ExpertsStruct:
        shared = experts.shared_intermediate_size
        mlps = (MLPStruct * experts.count)(
            *(self._mlp(f"{prefix}experts.{index}.") for index in range(experts.count))
        )
        found = ExpertsStruct(
            router=self._matrix(f"{prefix}gate.weight"),
            experts=mlps,
            count=experts.count,
            per_token=experts.per_token,
            intermediate_size=experts.intermediate_size,
            shared_intermediate_size=shared or 0,
            renormalises=int(experts.renormalize),
        )
        if shared is not None:
            found.shared = self._mlp(f"{prefix}shared_expert.")
            found.shared_gate = self._matrix(f"{prefix}shared_expert_gate.weight")
        self.kept_alive += [found, mlps]
        return found

    def _matrix(self, name: str) -> MatrixStruct:
        weight = self._weights[name]
        assert isinstance(weight, PackedLinear)
        return weight.matrix(self._vector(f"{name.removesuffix('.weight')}.bias"))

    def _norm(self, name: str) -> NormStruct:
        weight, bias = self._vector(f"{name}.weight"), self._vector(f"{name}.bias")
        if weight is None:
            raise KeyError(f"{name}.weight")
        return NormStruct(weight.data_ptr(), None if bias is None else bias.data_ptr())

    def _vector(self, name: str) -> Tensor | None:
        vector = self._weights.get(name)
        if vector is None:
            return None
        assert isinstance(vector, Tensor)
        assert vector.dtype == torch.float32
        assert vector.is_contiguous()
        return vector
