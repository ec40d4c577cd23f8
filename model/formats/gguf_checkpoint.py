"""GGUFCheckpoint: a GGUF file as a model's configuration, text parts and canonical tensors.

A tensor is read when it is asked for, as packed blocks or as floats, and one at a time.
The container itself is gguf_file.py's, the meaning of the blocks the `gguf` package's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from gguf import quants
from torch import Tensor

from model.chat_template import ChatTemplate, read_gguf_templates
from model.errors import CheckpointError
from model.families.known import FAMILIES
from model.families.tensor_parts import GGUFTensors, TensorPart
from model.formats.default_params import checked_defaults
from model.formats.gguf_config import read_gguf_config
from model.formats.gguf_file import GGUFFile, GGUFTensor, row_bytes
from model.formats.gguf_parts import open_gguf
from model.tokenizer import Tokenizer

_END_IDS = ("eos_token_id", "eot_token_id", "eom_token_id")
_SAMPLING: Mapping[str, str] = {
    "temp": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
ROTARY_VECTORS = "rope_"
"""How the names of divisors of rotary frequencies begin."""
MAX_FACTORS = 4096
"""Rotary factors of one head; far more than any head has."""
_FLOATS: Mapping[str, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
_CHUNK_BLOCKS = 2**12
"""Blocks unpacked at once; by rows, as the package does it, takes twice the time."""


@dataclass(frozen=True, slots=True)
class GGUFSource:
    """One canonical tensor still in the file.

    A vector counts as a column: each of its elements is a row.
    """

    file: GGUFFile
    tensor: GGUFTensor
    part: TensorPart

    @property
    def name(self) -> str:
        """Its name in the Transformer, or in the file if it has none there."""
        return self.part.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.part.shape_of(self.tensor.shape)

    @property
    def stored_as(self) -> str:
        """The type in the file, such as F32 or Q4_K."""
        return self.tensor.qtype.name

    def raw_blocks(self) -> Tensor | None:
        """Read the rows as they are packed, (rows, bytes of a row) uint8; None for floats."""
        return None if self.stored_as in _FLOATS else self._read()

    def _read(self) -> Tensor:
        """Read the bytes of the rows, (rows, bytes of a row) uint8."""
        blocks = self.file.read(self.tensor, self.part.expert)
        row_length = self.shape[1] if len(self.shape) == 2 else 1
        if row_length == 1 and self.stored_as not in _FLOATS:
            raise CheckpointError(f"{self.tensor.name} is a vector in {self.stored_as} blocks.")
        blocks = blocks.reshape(-1, row_bytes(self.tensor.qtype, row_length))
        return torch.from_numpy(blocks if self.part.rows is None else blocks[self.part.rows])

    def load(self, dtype: torch.dtype) -> Tensor:
        """Read and unpack the tensor, some blocks at a time."""
        packed = self._read()
        if self.stored_as in _FLOATS:
            floats = packed.view(_FLOATS[self.stored_as]).view(self.shape).to(dtype)
            return floats + self.part.offset if self.part.offset else floats
        unpacker = getattr(quants, self.stored_as)
        unpacker.init_grid()
        blocks = packed.numpy().reshape(-1, unpacker.type_size)
        result = torch.empty(len(blocks), unpacker.block_size, dtype=dtype)
        for start in range(0, len(blocks), _CHUNK_BLOCKS):
            chunk = slice(start, start + _CHUNK_BLOCKS)
            result[chunk] = torch.from_numpy(unpacker.dequantize_blocks(blocks[chunk]))
        return result.view(self.shape)


class GGUFCheckpoint:
    """A model in one GGUF file, or in several parts, of which any may be named."""

    def __init__(self, path: Path) -> None:
        """Read the metadata and the directory.

        Raises:
            CheckpointError: A file is broken or missing.
            ConfigError: The metadata ask for what is not supported.
        """
        self.path = path
        self.file = open_gguf(path)
        self.config = read_gguf_config(
            self.file.metadata,
            GGUFTensors(names=frozenset(self.file.tensors), vectors=dict(self._rotary_vectors())),
        )

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The vocabulary the file carries."""
        return Tokenizer.from_gguf(self.file.metadata)

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The template the file carries, if any."""
        source = read_gguf_templates(self.file.metadata)
        if source is None:
            return None
        tokens = {"bos_token": self.tokenizer.bos_token, "eos_token": self.tokenizer.eos_token}
        return ChatTemplate(source, **{name: token for name, token in tokens.items() if token})

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Every id that the file says ends a text or a turn."""
        found = (self.file.metadata.get(f"tokenizer.ggml.{name}") for name in _END_IDS)
        return frozenset(token_id for token_id in found if isinstance(token_id, int))

    @property
    def default_params(self) -> dict[str, float]:
        """The sampling parameters the file recommends."""
        found = {
            ours: self.file.metadata.get(f"general.sampling.{theirs}")
            for theirs, ours in _SAMPLING.items()
        }
        return checked_defaults(found, "general.sampling")

    def sources(self) -> Iterator[GGUFSource]:
        """List the tensors under their canonical names, unknown ones under their own."""
        family = FAMILIES[self.config.architecture]
        for tensor in self.file.tensors.values():
            for part in family.gguf_parts(tensor.name, tensor.shape, self.config):
                yield GGUFSource(self.file, tensor, part)

    def _rotary_vectors(self) -> Iterator[tuple[str, tuple[float, ...]]]:
        """Read the divisors of rotary frequencies."""
        for tensor in self.file.tensors.values():
            if not tensor.name.startswith(ROTARY_VECTORS):
                continue
            if len(tensor.shape) != 1 or tensor.shape[0] > MAX_FACTORS:
                raise CheckpointError(
                    f"{tensor.name} has the shape {tensor.shape}; expected half the head size."
                )
            source = GGUFSource(self.file, tensor, TensorPart(name=tensor.name))
            yield tensor.name, tuple(source.load(torch.float32).flatten().tolist())
