"""GGUFFile: the metadata and the tensor directory of a GGUF file, read within bounds.

The `gguf` package walks the container and names its types; this module keeps that walk inside the
file and inside a few limits, reads long arrays in one go, and hands out plain Python values.
Knows no architectures and never converts a weight. The file is mapped only while it is opened.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from gguf import (
    GGML_QUANT_SIZES,
    GGMLQuantizationType,
    GGUFReader,
    GGUFValueType,
    ReaderField,
    quants,
)

from model.errors import CheckpointError

METADATA_LIMIT = 64 * 2**20
"""Bytes before the first weight; a vocabulary of a million entries stays well below."""
ELEMENT_LIMIT = 2**22
"""Elements of all metadata arrays together."""
COUNT_LIMIT = 2**16
"""Metadata keys, and tensors."""
MAX_DIMENSIONS = 4

FLOAT_TYPES = (
    GGMLQuantizationType.F32,
    GGMLQuantizationType.F16,
    GGMLQuantizationType.BF16,
)
SUPPORTED_TYPES = (
    *FLOAT_TYPES,
    *(
        qtype
        for qtype in GGMLQuantizationType
        if qtype not in FLOAT_TYPES and hasattr(quants, qtype.name)
    ),
)
"""Floats, and all blocks that the package unpacks."""

_HEADER = Struct("<4sIQQ")
_STRING_LENGTH = Struct("<Q")


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """Where one tensor lies in the file and how its blocks are packed."""

    path: Path
    """The file, which may be a part of the model."""
    name: str
    qtype: GGMLQuantizationType
    shape: tuple[int, ...]
    """Outermost axis first, as torch has it."""
    offset: int
    """From the start of the file, in bytes."""
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """What a GGUF file says about itself."""

    path: Path
    metadata: Mapping[str, object]
    """Plain numbers, booleans, strings and lists of them, by their full keys."""
    tensors: Mapping[str, GGUFTensor]

    @staticmethod
    def open(path: Path) -> GGUFFile:
        """Read everything but the weights.

        Raises:
            CheckpointError: The file is not GGUF, is broken, or exceeds a limit.
        """
        try:
            _check_header(path)
            reader = _BoundedReader(path)
            metadata = {
                name: _plain_value(field)
                for name, field in reader.fields.items()
                if not name.startswith("GGUF.")
            }
        except OSError as error:
            raise CheckpointError(f"Cannot read {path}: {error.strerror or error}.") from error
        except (ValueError, KeyError) as error:
            reason = error.args[0] if isinstance(error, KeyError) else error
            raise CheckpointError(f"{path.name} is not a usable GGUF file: {reason}.") from error
        return GGUFFile(path, metadata, {tensor.name: tensor for tensor in reader.directory})

    def read(self, tensor: GGUFTensor, index: int | None = None) -> npt.NDArray[np.uint8]:
        """Read the bytes of one tensor, or of one item of its outermost axis."""
        size, offset = tensor.num_bytes, tensor.offset
        if index is not None:
            size //= tensor.shape[0]
            offset += index * size
        content = np.fromfile(tensor.path, np.uint8, size, offset=offset)
        if content.size != size:
            raise CheckpointError(f"{tensor.path.name} was cut short while {tensor.name} was read.")
        return content


def row_bytes(qtype: GGMLQuantizationType, length: int) -> int:
    """Bytes of one row of `length` elements; a row holds whole blocks only.

    Raises:
        ValueError: The length is not a multiple of the block size.
    """
    block_size, block_bytes = GGML_QUANT_SIZES[qtype]
    if length % block_size:
        raise ValueError(f"rows of {length} elements do not divide into {qtype.name} blocks")
    return int(length // block_size * block_bytes)


def _check_header(path: Path) -> None:
    """Refuse what the package's reader would misread or take for ever to read."""
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
    if header[:4] != b"GGUF":
        raise ValueError("it does not begin with the letters GGUF")
    if len(header) < _HEADER.size:
        raise ValueError("it ends within its header")
    _, version, num_tensors, num_keys = _HEADER.unpack(header)
    if version not in (2, 3):
        raise ValueError(f"its version is {version}; expected little-endian 2 or 3")
    for what, count in (("tensors", num_tensors), ("metadata keys", num_keys)):
        if count > COUNT_LIMIT:
            raise ValueError(f"it announces {count} {what}; the limit is {COUNT_LIMIT}")


def _plain_value(field: ReaderField) -> object:
    value = field.parts[-1]
    if field.types[0] == GGUFValueType.ARRAY:
        return value.tolist() if isinstance(value, np.ndarray) else value
    if field.types[0] == GGUFValueType.STRING:
        return str(bytes(value), "utf-8")
    return value[0].item()


class _BoundedReader(GGUFReader):
    """The package's reader, kept within the file, with a directory in place of mapped tensors."""

    num_elements = 0
    directory: list[GGUFTensor]

    def __init__(self, path: Path) -> None:
        self.source = path
        super().__init__(path)

    def _get(
        self,
        offset: int,
        dtype: npt.DTypeLike,
        count: int = 1,
        override_order: Literal["I", "S", "<"] | None = None,
    ) -> npt.NDArray[Any]:
        """Refuse to read past the end, where a memory map would return less than was asked."""
        self._check_end(offset + np.dtype(dtype).itemsize * int(count))
        return super()._get(offset, dtype, count, override_order)

    def _check_end(self, end: int) -> None:
        if end > self.data.size:
            raise ValueError(f"its metadata runs past the end of the file, {self.data.size} bytes")
        if end > METADATA_LIMIT:
            raise ValueError(f"its metadata is longer than {METADATA_LIMIT} bytes")

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[Any], list[int], list[GGUFValueType]]:
        """Read an array as one part; the package makes one of each element, which takes seconds."""
        if raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, int(raw_type))
        item_type = GGUFValueType(int(self._get(orig_offs, np.uint32)[0]))
        count = int(self._get(orig_offs + 4, np.uint64)[0])
        start = orig_offs + 12
        self.num_elements += count
        if self.num_elements > ELEMENT_LIMIT:
            raise ValueError(f"its arrays hold more than {ELEMENT_LIMIT} elements")
        values: list[str] | npt.NDArray[Any]
        if item_type == GGUFValueType.STRING:
            values, end = self._get_strings(start, count)
        elif item_type in self.gguf_scalar_to_np:
            values = self._get(start, self.gguf_scalar_to_np[item_type], count)
            end = start + values.nbytes
        else:
            raise ValueError(f"it holds an array of type {item_type.name}")
        return end - orig_offs, [values], [0], [GGUFValueType.ARRAY, item_type]

    def _get_strings(self, start: int, count: int) -> tuple[list[str], int]:
        view, unpack = self.data.data, _STRING_LENGTH.unpack_from
        limit = min(self.data.size, METADATA_LIMIT)
        strings = []
        end = start
        for _ in range(count):  # a hundred thousand times: nothing else here takes as long
            start = end + _STRING_LENGTH.size
            end = start + (unpack(view, end)[0] if start <= limit else 0)
            if end > limit:
                self._check_end(end)
            strings.append(str(view[start:end], "utf-8"))
        return strings, end

    def _build_tensors(self, start_offs: int, fields: list[ReaderField]) -> None:
        """List the tensors, each checked to lie within the file."""
        self.directory = []
        names = set()
        for field in fields:
            tensor = self._describe(start_offs, field)
            if tensor.name in names:
                raise ValueError(f"tensor {tensor.name} appears twice")
            names.add(tensor.name)
            self.directory.append(tensor)

    def _describe(self, start: int, field: ReaderField) -> GGUFTensor:
        _, _, _, dimensions, raw_type, offset = field.parts
        if not field.name.isprintable():
            raise ValueError(f"a tensor is named {field.name!r}")
        shape = tuple(reversed(dimensions.tolist()))
        if not 1 <= len(shape) <= MAX_DIMENSIONS or 0 in shape:
            raise ValueError(
                f"tensor {field.name} has the dimensions {shape[:8]}; "
                f"expected 1 to {MAX_DIMENSIONS} positive ones"
            )
        qtype = GGMLQuantizationType(int(raw_type[0]))
        if qtype not in SUPPORTED_TYPES:
            raise ValueError(
                f"tensor {field.name} has the type {qtype.name}; "
                f"supported are {', '.join(qtype.name for qtype in SUPPORTED_TYPES)}"
            )
        if len(shape) == 1 and GGML_QUANT_SIZES[qtype][0] > 1:
            raise ValueError(f"tensor {field.name} is a vector in {qtype.name} blocks")
        num_bytes = math.prod(shape[:-1]) * row_bytes(qtype, shape[-1])
        begin = start + int(offset[0])
        if begin + num_bytes > self.data.size:
            raise ValueError(
                f"tensor {field.name} ends at byte {begin + num_bytes} "
                f"of a file of {self.data.size} bytes"
            )
        return GGUFTensor(self.source, field.name, qtype, shape, begin, num_bytes)
