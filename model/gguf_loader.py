"""GGUFCheckpoint: a GGUF file as a model's configuration, text parts and canonical tensors.

Holds what the conversion to GGUF did to names, row orders and fused matrices, and undoes it.
A tensor is read when it is asked for, as packed blocks or as floats, and one at a time.
The container itself is gguf_file.py's, the meaning of the blocks the `gguf` package's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf import quants
from torch import Tensor

from model.chat_template import ChatTemplate, read_gguf_templates
from model.config import ModelConfig
from model.errors import CheckpointError
from model.formats.gguf_file import GGUFFile, GGUFTensor, row_bytes
from model.tokenizer import Tokenizer

ROPE_FACTORS = "rope_freqs.weight"
OUTPUT = "output.weight"

_TOP_LEVEL: Mapping[str, str] = {
    "token_embd": "model.embed_tokens",
    "position_embd": "model.position_embeddings",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_IN_BLOCK: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_IN_SANDWICH_BLOCK: Mapping[str, str] = {
    **_IN_BLOCK,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_FUSED = "attn_qkv"
"""Queries, keys and values of gpt2 in one."""
_BLOCK_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")

_END_IDS = ("eos_token_id", "eot_token_id", "eom_token_id")
_SAMPLING: Mapping[str, str] = {
    "temp": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
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
    """One canonical tensor, or the rows of one, still in the file.

    A vector counts as a column: each of its elements is a row.
    """

    name: str
    shape: tuple[int, ...]
    file: GGUFFile
    tensor: GGUFTensor
    rows: npt.NDArray[np.int64] | None = None
    """Which rows of the file's tensor, in which order; None is all as they are."""

    @property
    def stored_as(self) -> str:
        """The type in the file, such as F32 or Q4_K."""
        return self.tensor.qtype.name

    def raw_blocks(self) -> Tensor | None:
        """Read the rows as they are packed, (rows, bytes of a row) uint8; None for floats."""
        return None if self.stored_as in _FLOATS else self._read()

    def _read(self) -> Tensor:
        """Read the bytes of the rows, (rows, bytes of a row) uint8."""
        blocks = self.file.read(self.tensor)
        num_bytes = row_bytes(self.tensor.qtype, self._row_length)
        blocks = blocks.reshape(-1, num_bytes)
        return torch.from_numpy(blocks if self.rows is None else blocks[self.rows])

    def load(self, dtype: torch.dtype) -> Tensor:
        """Read and unpack the tensor, some blocks at a time."""
        packed = self._read()
        if self.stored_as in _FLOATS:
            return packed.view(_FLOATS[self.stored_as]).view(self.shape).to(dtype)
        unpacker = getattr(quants, self.stored_as)
        blocks = packed.numpy().reshape(-1, unpacker.type_size)
        result = torch.empty(len(blocks), unpacker.block_size, dtype=dtype)
        for start in range(0, len(blocks), _CHUNK_BLOCKS):
            chunk = slice(start, start + _CHUNK_BLOCKS)
            result[chunk] = torch.from_numpy(unpacker.dequantize_blocks(blocks[chunk]))
        return result.view(self.shape)

    @property
    def _row_length(self) -> int:
        return self.shape[1] if len(self.shape) == 2 else 1


class GGUFCheckpoint:
    """A model in one GGUF file."""

    def __init__(self, path: Path) -> None:
        """Read the metadata and the directory.

        Raises:
            CheckpointError: The file is broken or is one part of a split model.
            ConfigError: The metadata ask for what is not supported.
        """
        self.path = path
        self.file = GGUFFile.open(path)
        parts = self.file.metadata.get("split.count", 1)
        if parts not in (0, 1):
            raise CheckpointError(f"{path.name} is one of {parts} parts; join them into one file.")
        self.config = ModelConfig.from_gguf(
            self.file.metadata,
            tied_output=OUTPUT not in self.file.tensors,
            frequency_factors=self._frequency_factors(),
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
        return {
            name: value
            for name, value in found.items()
            if isinstance(value, int | float) and math.isfinite(value)
        }

    def sources(self) -> Iterator[GGUFSource]:
        """List the tensors under their canonical names, unknown ones under their own."""
        for tensor in self.file.tensors.values():
            if tensor.name == ROPE_FACTORS and any(self.config.rotaries):
                continue
            block = _BLOCK_NAME.fullmatch(tensor.name)
            if block and block[2] == _FUSED:
                yield from self._unfused(tensor, layer=block[1], kind=block[3])
            else:
                rows = self._row_order(tensor, part=block[2] if block else "")
                yield GGUFSource(
                    self._canonical_name(tensor.name), tensor.shape, self.file, tensor, rows
                )

    def _canonical_name(self, name: str) -> str:
        block = _BLOCK_NAME.fullmatch(name)
        if block:
            names = _IN_SANDWICH_BLOCK if self.config.sandwich_norms else _IN_BLOCK
            layer, part, kind = block.groups()
            return f"model.layers.{layer}.{names[part]}.{kind}" if part in names else name
        part, _, kind = name.rpartition(".")
        return f"{_TOP_LEVEL[part]}.{kind}" if part in _TOP_LEVEL else name

    def _row_order(self, tensor: GGUFTensor, *, part: str) -> npt.NDArray[np.int64] | None:
        """Undo the interleaving of a llama's query and key rows.

        The conversion puts the two halves of each head, which rotary turns together, side by
        side: row i of the first half, row i of the second, and so on.
        """
        heads = {"attn_q": self.config.num_heads, "attn_k": self.config.num_kv_heads}.get(part)
        if heads is None or self.config.architecture != "llama":
            return None
        half = self.config.head_dim // 2
        if tensor.shape[0] != heads * 2 * half:
            return None  # misshapen, which the loader says with the name
        pairs = np.arange(tensor.shape[0]).reshape(heads, half, 2)
        return pairs.transpose(0, 2, 1).reshape(-1)

    def _unfused(self, tensor: GGUFTensor, *, layer: str, kind: str) -> Iterator[GGUFSource]:
        """Split the rows of queries, keys and values, which gpt2 keeps in one matrix."""
        width = self.config.hidden_size
        if tensor.shape[0] != 3 * width:
            yield GGUFSource(tensor.name, tensor.shape, self.file, tensor)
            return
        for i, letter in enumerate("qkv"):
            yield GGUFSource(
                f"model.layers.{layer}.self_attn.{letter}_proj.{kind}",
                (width, *tensor.shape[1:]),
                self.file,
                tensor,
                np.arange(i * width, (i + 1) * width),
            )

    def _frequency_factors(self) -> list[float]:
        tensor = self.file.tensors.get(ROPE_FACTORS)
        if tensor is None or self.file.metadata.get("general.architecture") == "gpt2":
            return []
        if len(tensor.shape) != 1 or tensor.shape[0] > MAX_FACTORS:
            raise CheckpointError(
                f"{ROPE_FACTORS} has the shape {tensor.shape}; expected half the head size."
            )
        source = GGUFSource(ROPE_FACTORS, tensor.shape, self.file, tensor)
        factors: list[float] = source.load(torch.float32).flatten().tolist()
        return factors
