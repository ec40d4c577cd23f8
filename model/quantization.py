"""PackedLinear: one weight matrix in the form the native kernels read, and nothing beside it.

Packs float tensors and GGUF blocks, one tensor at a time, so that the source can be dropped at
once. Q8_0, Q4_0, Q4_1, Q5_0, IQ4_NL and MXFP4 keep their exact values, Q4_K and IQ4_XS their
numbers with scales rounded to float16; the other GGUF types become int8 in groups of 32. Knows no
layer names and no files.
"""

from __future__ import annotations

import ctypes
from typing import Literal, get_args

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from model.native_abi import MatrixStruct
from model.native_library import NativeKernels

WeightFormat = Literal["float32", "bfloat16", "int8", "int4", "int4_affine"]
FORMATS: tuple[WeightFormat, ...] = get_args(WeightFormat)
"""In the order of their numbers in kvserve.h."""

_FLOAT_FORMATS: dict[torch.dtype, WeightFormat] = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
}
_GGUF_FLOATS: dict[int, torch.dtype] = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}

_PANEL = 16
_ROWS_AT_A_TIME = 4096
"""Rows widened to float32 at once where a block type has no direct form."""


class PackedLinear:
    """A matrix (out, in), packed.

    int8 is scale x q in groups of 32 inputs; int4 is scale x (q - 8), int4_affine is
    scale x q + min, which loses less when floats are rounded. Scales are float16.

    Attributes:
        format: How the values are stored.
        shape: (out, in).
        data: The packed bytes, uint8.
        kernels: What packed it and reads it.
    """

    def __init__(
        self,
        data: Tensor,
        *,
        weight_format: WeightFormat,
        shape: tuple[int, int],
        kernels: NativeKernels,
    ) -> None:
        self.data = data
        self.format = weight_format
        self.shape = shape
        self.kernels = kernels

    @classmethod
    def from_float(
        cls, weight: Tensor, *, weight_format: WeightFormat, kernels: NativeKernels
    ) -> PackedLinear:
        """Pack a float32, bfloat16 or float16 matrix (out, in), rounding it to `weight_format`.

        Raises:
            ValueError: The tensor is no such matrix.
        """
        if weight.ndim != 2:
            raise ValueError(f"weight has {weight.ndim} axes; expected 2 (out, in)")
        packed = cls._empty(
            weight_format, shape=(weight.shape[0], weight.shape[1]), kernels=kernels
        )
        _pack_rows(packed, weight, first=0)
        return packed

    @classmethod
    def from_gguf(
        cls, blocks: Tensor, *, qtype: int, shape: tuple[int, int], kernels: NativeKernels
    ) -> PackedLinear:
        """Pack the raw bytes of a GGUF tensor.

        Args:
            blocks: uint8, `out` rows of blocks one after the other.
            qtype: The block type's number in the file (gguf.GGMLQuantizationType).
            shape: (out, in).
            kernels: What packs, and what will read the result.

        Raises:
            ValueError: The bytes do not make up that shape.
        """
        qtype = GGMLQuantizationType(qtype)
        rows = blocks.contiguous().view(torch.uint8).reshape(shape[0], -1)
        dtype = _GGUF_FLOATS.get(qtype)
        if dtype is not None:
            weight = rows.view(dtype)
            if tuple(weight.shape) != shape:
                raise ValueError(f"{qtype.name} data has shape {tuple(weight.shape)}, not {shape}")
            floats: WeightFormat = "float32" if dtype == torch.float32 else "bfloat16"
            return cls.from_float(weight, weight_format=floats, kernels=kernels)
        pack = kernels.library.kv_pack_gguf
        _check_row_bytes(rows, shape, qtype)
        direct = pack(None, qtype, None, *shape, None)
        if direct >= 0:
            packed = cls._empty(FORMATS[direct], shape=shape, kernels=kernels)
            pack(kernels.pool, qtype, rows.data_ptr(), *shape, packed.data.data_ptr())
            return packed
        packed = cls._empty("int8", shape=shape, kernels=kernels)
        for first in range(0, shape[0], _ROWS_AT_A_TIME):
            part = dequantize(rows[first : first + _ROWS_AT_A_TIME].numpy(), qtype)
            _pack_rows(packed, torch.from_numpy(np.ascontiguousarray(part)), first=first)
        return packed

    @property
    def nbytes(self) -> int:
        """Bytes of the packed form."""
        return self.data.nbytes

    def matrix(self, bias: Tensor | None = None) -> MatrixStruct:
        """Describe the matrix to the kernels; valid while `data` and `bias` live."""
        return MatrixStruct(
            format=FORMATS.index(self.format),
            out_features=self.shape[0],
            in_features=self.shape[1],
            data=self.data.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
        )

    def rows(self, ids: Tensor, *, scale: float = 1.0) -> Tensor:
        """Return `scale` times the rows named by ids (N,) int64, as float32 (N, in).

        Raises:
            IndexError: An id is outside the matrix.
        """
        ids = ids.contiguous()
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.shape[0]:
            raise IndexError(f"ids must be in 0..{self.shape[0] - 1}")
        out = torch.empty(len(ids), self.shape[1])
        matrix = self.matrix()
        self.kernels.library.kv_gather_rows(
            self.kernels.pool,
            ctypes.byref(matrix),
            ids.data_ptr(),
            len(ids),
            scale,
            out.data_ptr(),
        )
        return out

    def multiply(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return x (..., in) float32 times the matrix transposed, plus bias: (..., out)."""
        assert x.dtype == torch.float32
        x = x.contiguous()
        out = x.new_empty(*x.shape[:-1], self.shape[0])
        matrix = self.matrix(bias)
        self.kernels.library.kv_linear(
            self.kernels.pool,
            ctypes.byref(matrix),
            x.data_ptr(),
            x.numel() // self.shape[1],
            out.data_ptr(),
            self.shape[0],
            0,
        )
        return out

    def dequantize(self) -> Tensor:
        """Return the values as float32 (out, in)."""
        return self.rows(torch.arange(self.shape[0]))

    @classmethod
    def _empty(
        cls, weight_format: WeightFormat, *, shape: tuple[int, int], kernels: NativeKernels
    ) -> PackedLinear:
        data = kernels.memory.take(packed_bytes(weight_format, shape=shape, kernels=kernels))
        return cls(data, weight_format=weight_format, shape=shape, kernels=kernels)


def packed_bytes(
    weight_format: WeightFormat, *, shape: tuple[int, int], kernels: NativeKernels
) -> int:
    """Return the bytes that a matrix (out, in) takes when it is packed."""
    return int(kernels.library.kv_packed_bytes(FORMATS.index(weight_format), *shape))


def packed_format(qtype: int, *, shape: tuple[int, int], kernels: NativeKernels) -> WeightFormat:
    """Return the format that GGUF blocks are packed in: int8 where they have no direct form."""
    direct = kernels.library.kv_pack_gguf(None, qtype, None, *shape, None)
    return FORMATS[direct] if direct >= 0 else "int8"


def _pack_rows(packed: PackedLinear, weight: Tensor, *, first: int) -> None:
    """Pack float rows into their place; `first` is a multiple of the panel height."""
    assert first % _PANEL == 0
    if weight.dtype not in _FLOAT_FORMATS:
        weight = weight.float()
    weight = weight.detach().contiguous()
    num_panels = -(-packed.shape[0] // _PANEL)
    offset = first // _PANEL * (packed.nbytes // max(1, num_panels))
    packed.kernels.library.kv_pack_float(
        packed.kernels.pool,
        FORMATS.index(packed.format),
        FORMATS.index(_FLOAT_FORMATS[weight.dtype]),
        weight.data_ptr(),
        *weight.shape,
        packed.data.data_ptr() + offset,
    )


def _check_row_bytes(rows: Tensor, shape: tuple[int, int], qtype: GGMLQuantizationType) -> None:
    block, size = GGML_QUANT_SIZES[qtype]
    inputs = shape[1]
    if inputs % block or rows.shape[1] != inputs // block * size:
        raise ValueError(
            f"{qtype.name} data has {rows.shape[1]} bytes a row; expected "
            f"{inputs // block * size} for {inputs} inputs in blocks of {block}"
        )
