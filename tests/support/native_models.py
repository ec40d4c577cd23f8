"""A NativeTransformer with the weights of a Transformer, without a file in between."""

from __future__ import annotations

import torch
from torch import Tensor

from model.native import POSITIONS, NativeTransformer
from model.native_library import NativeKernels
from model.quantization import PackedLinear, WeightFormat
from model.transformer import Transformer


def native_from(
    transformer: Transformer,
    *,
    kernels: NativeKernels,
    weight_format: WeightFormat | None = None,
) -> NativeTransformer:
    """Pack the weights, by default in the formats they have.

    An embedding that only looks up rows keeps its format, as it does in the loader.
    """

    def pack(name: str, tensor: Tensor) -> PackedLinear | Tensor:
        if tensor.ndim != 2:
            return tensor.detach().float().contiguous()
        own: WeightFormat = "float32" if tensor.dtype == torch.float32 else "bfloat16"
        keeps = name == POSITIONS or weight_format is None
        chosen = own if keeps or weight_format is None else weight_format
        return PackedLinear.from_float(tensor, weight_format=chosen, kernels=kernels)

    weights = {name: pack(name, tensor) for name, tensor in transformer.named_parameters()}
    return NativeTransformer(transformer.config, weights, kernels=kernels)
