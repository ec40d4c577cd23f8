"""measure_footprint: what a model would take in memory, and what would run it, without its weights.

Adds up what the loader would make of each tensor; reads the directory of the files only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from gguf import GGMLQuantizationType

from cache.pool import KVCachePool
from model.config import ModelConfig
from model.formats.loader import KEPT, Checkpoint, DType, Quantization, TensorSource, resolve_dtype
from model.native_library import NativeKernels
from model.native_support import unsupported_feature
from model.quantization import WeightFormat, packed_bytes, packed_format

_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a model would be once it is loaded."""

    config: ModelConfig
    weights_bytes: int
    cache_bytes_per_token: int
    """With keys and values in the model's own type."""
    num_parameters: int
    lacking: str | None
    """What the native kernels lack to run it; None if they can."""


def measure_footprint(
    checkpoint: Checkpoint,
    *,
    kernels: NativeKernels | None,
    dtype: DType,
    quantize: Quantization | None,
) -> Footprint:
    """Measure a model on a CPU; the arguments are those of `load_model`."""
    config = checkpoint.config
    sources = {source.name: source for source in checkpoint.sources()}
    resolved = resolve_dtype(dtype, config, sources)
    lacking = unsupported_feature(config)
    if config.tie_word_embeddings:
        sources.pop("lm_head.weight", None)
    usable = kernels if lacking is None else None

    def size(source: TensorSource) -> int:
        count = math.prod(source.shape)
        if len(source.shape) != 2:
            return 4 * count
        if usable is None:
            return count * resolved.itemsize
        shape = (source.shape[0], source.shape[1])
        own: WeightFormat = "float32" if resolved == torch.float32 else "bfloat16"
        chosen = own if quantize is None or source.name.endswith(KEPT) else quantize
        if quantize is None and dtype == "auto" and source.stored_as not in _FLOATS:
            qtype = GGMLQuantizationType[source.stored_as]
            chosen = packed_format(qtype, shape=shape, kernels=usable)
        return packed_bytes(chosen, shape=shape, kernels=usable)

    return Footprint(
        config=config,
        weights_bytes=sum(map(size, sources.values())),
        cache_bytes_per_token=KVCachePool.bytes_per_token(
            config.num_layers, config.num_kv_heads, config.head_dim, resolved
        ),
        num_parameters=sum(math.prod(source.shape) for source in sources.values()),
        lacking=lacking,
    )
