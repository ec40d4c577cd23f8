"""The C interface of the native kernels, kernels/kvserve.h, as ctypes sees it.

A change there is a change here and in kernels/layouts.cpp, and a new ABI_VERSION in both.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_void_p
from typing import ClassVar

ABI_VERSION = 10


class MatrixStruct(ctypes.Structure):
    """kv_matrix: the packed weights of a linear layer."""

    _fields_: ClassVar = [
        ("format", c_int32),
        ("reserved", c_int32),
        ("in_features", c_int64),
        ("out_features", c_int64),
        ("data", c_void_p),
        ("bias", c_void_p),
    ]


class CacheLayerStruct(ctypes.Structure):
    """kv_cache_layer: one layer's keys and values in the pool."""

    _fields_: ClassVar = [
        ("keys", c_void_p),
        ("values", c_void_p),
        ("format", c_int32),
        ("block_size", c_int32),
        ("kv_heads", c_int32),
        ("head_size", c_int32),
    ]


class BatchStruct(ctypes.Structure):
    """kv_batch: who sees what in a flat ragged batch."""

    _fields_: ClassVar = [
        ("requests", c_int64),
        ("query_starts", c_void_p),
        ("key_lengths", c_void_p),
        ("block_table", c_void_p),
        ("max_blocks", c_int64),
    ]


class NormStruct(ctypes.Structure):
    """kv_norm: weights of a norm; all null is none."""

    _fields_: ClassVar = [("weight", c_void_p), ("bias", c_void_p)]


class MLPStruct(ctypes.Structure):
    """kv_mlp: the matrices of an MLP; all null is none."""

    _fields_: ClassVar = [(name, MatrixStruct) for name in ("gate", "up", "down")]


class ExpertsStruct(ctypes.Structure):
    """kv_experts: the weights of a mixture of experts."""

    _fields_: ClassVar = [
        ("router", MatrixStruct),
        ("shared_gate", MatrixStruct),
        ("experts", POINTER(MLPStruct)),
        ("shared", MLPStruct),
        ("count", c_int64),
        ("per_token", c_int64),
        ("intermediate_size", c_int64),
        ("shared_intermediate_size", c_int64),
        ("renormalises", c_int32),
        ("reserved", c_int32),
    ]


class LayerStruct(ctypes.Structure):
    """kv_layer: the weights of one decoder layer."""

    _fields_: ClassVar = [
        *((name, MatrixStruct) for name in ("q", "k", "v", "o")),
        ("mlp", MLPStruct),
        ("experts", POINTER(ExpertsStruct)),
        *((name, NormStruct) for name in ("input", "before_mlp", "attention_out", "mlp_out")),
        *((name, NormStruct) for name in ("q_norm", "k_norm")),
        ("sinks", c_void_p),
        ("window", c_int64),
        ("rotary", c_int64),
    ]


class RotaryStruct(ctypes.Structure):
    """kv_rotary_spec: angles per position."""

    _fields_: ClassVar = [("frequencies", c_void_p), ("count", c_int64), ("magnitude", c_double)]


class ModelStruct(ctypes.Structure):
    """kv_model_spec: a decoder."""

    _fields_: ClassVar = [
        ("hidden_size", c_int64),
        ("intermediate_size", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("head_size", c_int64),
        ("layer_count", c_int64),
        ("rotary_count", c_int64),
        ("layers", POINTER(LayerStruct)),
        ("rotaries", POINTER(RotaryStruct)),
        ("embedding", MatrixStruct),
        ("output", MatrixStruct),
        ("position_embedding", MatrixStruct),
        ("final", NormStruct),
        ("norm_epsilon", c_double),
        ("attention_scale", c_double),
        ("embedding_scale", c_double),
        ("residual_scale", c_double),
        ("logit_scale", c_double),
        ("attention_cap", c_double),
        ("logit_cap", c_double),
        ("is_layer_norm", c_int32),
        ("normalises_rows", c_int32),
        ("activation", c_int32),
        ("reserved", c_int32),
    ]


class StepStruct(ctypes.Structure):
    """kv_step: one flat ragged batch and its pool."""

    _fields_: ClassVar = [
        ("tokens", c_int64),
        ("input_ids", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("batch", BatchStruct),
        ("first_layer", CacheLayerStruct),
        ("layer_bytes", c_int64),
        ("blocks", c_int64),
    ]


class ChoiceStruct(ctypes.Structure):
    """kv_choice: how the next token of a row is chosen."""

    _fields_: ClassVar = [
        ("penalised_ids", c_void_p),
        ("output_counts", c_void_p),
        ("penalised_count", c_int64),
        ("repetition_penalty", c_float),
        ("presence_penalty", c_float),
        ("frequency_penalty", c_float),
        ("temperature", c_float),
        ("biased_ids", c_void_p),
        ("biases", c_void_p),
        ("biased_count", c_int64),
        ("banned_ids", c_void_p),
        ("banned_count", c_int64),
        ("allowed", c_void_p),
        ("top_p", c_double),
        ("uniform", c_double),
        ("top_k", c_int32),
        ("min_p", c_float),
    ]


CHOSEN, NOT_FINITE, NOTHING_ALLOWED = range(3)
"""What kv_choose says became of a row."""

_P, _I32, _I64, _F = c_void_p, c_int32, c_int64, c_float
_MATRIX, _CACHE, _BATCH = POINTER(MatrixStruct), POINTER(CacheLayerStruct), POINTER(BatchStruct)

STRUCTS: tuple[type[ctypes.Structure], ...] = (
    MatrixStruct,
    CacheLayerStruct,
    BatchStruct,
    ChoiceStruct,
    NormStruct,
    MLPStruct,
    ExpertsStruct,
    LayerStruct,
    RotaryStruct,
    ModelStruct,
    StepStruct,
)
"""In the order of kvserve.h."""

SIGNATURES: Mapping[str, tuple[object, tuple[object, ...]]] = {
    "kv_abi_version": (_I32, ()),
    "kv_instruction_set": (c_char_p, ()),
    "kv_instruction_sets": (c_char_p, ()),
    "kv_struct_layouts": (_I64, (POINTER(POINTER(_I64)),)),
    "kv_pool_create": (_P, (_I32,)),
    "kv_pool_destroy": (None, (_P,)),
    "kv_packed_bytes": (_I64, (_I32, _I64, _I64)),
    "kv_pack_float": (_I32, (_P, _I32, _I32, _P, _I64, _I64, _P)),
    "kv_pack_gguf": (_I32, (_P, _I32, _P, _I64, _I64, _P)),
    "kv_gather_rows": (None, (_P, _MATRIX, _P, _I64, _F, _P)),
    "kv_linear": (None, (_P, _MATRIX, _P, _I64, _P, _I64, _I32)),
    "kv_rms_norm": (None, (_P, _P, _P, _I64, _I64, _F, _P)),
    "kv_layer_norm": (None, (_P, _P, _P, _P, _I64, _I64, _F, _P)),
    "kv_gated_activation": (None, (_P, _I32, _P, _P, _I64, _I64, _I64, _P)),
    "kv_rotary": (None, (_P, _P, _I64, _I64, _I64, _I64, _P, _P, _P)),
    "kv_cache_write": (None, (_P, _CACHE, _P, _P, _I64, _I64, _P)),
    "kv_attention": (None, (_P, _CACHE, _BATCH, _P, _I64, _I64, _F, _F, _P, _I64, _P, _I64)),
    "kv_sampling_scratch": (_I64, (_I64,)),
    "kv_choose": (_I64, (_P, _P, _I64, _I64, _P, _P, _P, _P)),
    "kv_score": (None, (_P, _P, _P, _I64, _I64, _I64, _P, _P, _P)),
    "kv_model_create": (_P, (POINTER(ModelStruct),)),
    "kv_model_destroy": (None, (_P,)),
    "kv_model_forward": (_I32, (_P, _P, POINTER(StepStruct), _P)),
    "kv_model_logits": (None, (_P, _P, _P, _I64, _P)),
}
"""Result and argument types of every function in kvserve.h."""

STEP_ERRORS: Mapping[int, str] = {
    1: "an input id is outside the vocabulary",
    2: "a position is negative or beyond the model's trained positions",
    3: "a slot is outside the pool",
    4: "a request's keys are more than its row of the block table holds, or fewer than its queries",
    5: "the block table names a block outside the pool",
}
"""What kv_model_forward found wrong with a step, before it wrote anything."""


def struct_layouts() -> list[tuple[str, int]]:
    """List size and offsets of all structs as kv_struct_layouts does, each with what it is."""
    found = []
    for struct in STRUCTS:
        name = (struct.__doc__ or "").partition(":")[0]
        found.append((f"the size of {name}", ctypes.sizeof(struct)))
        found += [
            (f"{name}.{field[0]}", getattr(struct, field[0]).offset) for field in struct._fields_
        ]
    return found
