"""SafetensorsCheckpoint: a folder in Hugging Face layout as configuration and canonical tensors.

A tensor is read when it is asked for, and its file is mapped only while it is read, so that
loading holds one tensor beyond the model. The container is the `safetensors` package's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from model.chat_template import ChatTemplate, read_folder_templates
from model.errors import CheckpointError
from model.families.known import FAMILIES
from model.families.tensor_parts import TensorPart
from model.formats.default_params import checked_defaults
from model.formats.hf_config import read_hf_config
from model.tokenizer import Tokenizer

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
TEXT_LIMIT = 64 * 2**20
"""Bytes of a configuration, index or template file."""
FLOAT_TYPES = ("F64", "F32", "F16", "BF16")

_BUFFERS = re.compile(r"(.*\.)?(attn\.(masked_)?bias|rotary_emb\.inv_freq)")
"""Masks and frequencies that old files carry beside the weights; they are computed here."""

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class SafetensorsSource:
    """One canonical tensor still in the file."""

    path: Path
    key: str
    """Its name in the file."""
    stored_shape: tuple[int, ...]
    stored_as: str
    """The type in the file, such as F32 or BF16."""
    part: TensorPart

    @property
    def name(self) -> str:
        """Its name in the Transformer, or in the file if it has none there."""
        return self.part.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape, in the Transformer's layout."""
        return self.part.shape_of(self.stored_shape)

    def load(self, dtype: torch.dtype) -> Tensor:
        """Read the tensor into memory of its own."""
        part = self.part
        with _open(self.path) as file:
            stored: Tensor
            if part.expert is None:
                stored = file.get_tensor(self.key)
            else:
                stored = file.get_slice(self.key)[part.expert]
            if part.transposed:
                stored = stored.T
            if part.as_row:
                stored = stored[None]
            if part.rows is not None:
                stored = stored[part.rows]
            if part.offset:
                stored = stored.float() + part.offset
            result = torch.empty(self.shape, dtype=dtype)
            return result.copy_(stored)

    def raw_blocks(self) -> None:
        """Return None: these files hold numbers."""


class SafetensorsCheckpoint:
    """A model in a folder: config.json, safetensors, tokenizer files."""

    def __init__(self, path: Path) -> None:
        """Read the configuration and the directory of tensors.

        Raises:
            CheckpointError: A file is missing or broken.
            ConfigError: The configuration asks for what is not supported.
        """
        self.path = path
        raw = _read_json(path / "config.json")
        self.config = read_hf_config(raw)
        self._family = FAMILIES[self.config.architecture]
        self._end_ids = _ids(raw) | _ids(raw.get("text_config"))
        self._generation = _read_json_if_there(path / "generation_config.json")
        self._files = _weight_files(path)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The vocabulary in tokenizer.json."""
        return Tokenizer.from_hf_folder(self.path)

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The template in the folder, if any."""
        settings = _read_json_if_there(self.path / "tokenizer_config.json")
        source = read_folder_templates(self.path)
        return ChatTemplate(source, **_special_tokens(settings)) if source else None

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Every id that one of the configuration files says ends a text or a turn."""
        return self._end_ids | _ids(self._generation)

    @property
    def default_params(self) -> dict[str, float]:
        """The sampling parameters the model's authors recommend."""
        found = {name: self._generation.get(name) for name in _SAMPLING}
        return checked_defaults(found, "generation_config.json")

    def sources(self) -> Iterator[SafetensorsSource]:
        """List the tensors under their canonical names, unknown ones under their own."""
        for path, keys in self._files.items():
            with _open(path) as file:
                for key in keys:
                    if _BUFFERS.fullmatch(key):
                        continue
                    part = file.get_slice(key)
                    stored_as = part.get_dtype()
                    if stored_as not in FLOAT_TYPES:
                        raise CheckpointError(
                            f"{key} has the type {stored_as}; "
                            f"supported are {', '.join(FLOAT_TYPES)}."
                        )
                    shape = tuple(part.get_shape())
                    for found in self._family.hf_parts(key, shape, self.config):
                        yield SafetensorsSource(path, key, shape, stored_as, found)


def _weight_files(folder: Path) -> dict[Path, list[str]]:
    """Return the names of the tensors in each weight file."""
    if (folder / SINGLE).exists():
        return {folder / SINGLE: _keys(folder / SINGLE)}
    if not (folder / INDEX).exists():
        if any(folder.glob("*.bin")):
            raise CheckpointError(
                f"{folder} holds PyTorch .bin weights, which may run code when they are read; "
                "convert them to safetensors."
            )
        raise CheckpointError(f"{folder} holds neither {SINGLE} nor {INDEX}.")
    weight_map = _read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{INDEX} has no weight_map.")
    files: dict[Path, list[str]] = {}
    for key, name in weight_map.items():
        if not isinstance(name, str) or Path(name).name != name:
            raise CheckpointError(f"{INDEX} places {key} in {name!r}; expected a file beside it.")
        files.setdefault(folder / name, []).append(key)
    found = {path: _keys(path) for path in files}
    for path, keys in files.items():
        disputed = sorted({*keys} ^ {*found[path]})
        if disputed:
            raise CheckpointError(f"{INDEX} and {path.name} do not agree about {disputed[0]}.")
    return files


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    """Map a weight file while it is read from."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing.") from error
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{path.name} is not a usable safetensors file: {error}.") from error


def _keys(path: Path) -> list[str]:
    with _open(path) as file:
        return list(file.keys())


def _special_tokens(settings: Mapping[str, object]) -> dict[str, str]:
    """Return bos_token and its kind, each a text or an object around one."""
    found = {}
    for name, value in settings.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            found[name] = content
    return found


def _read_json_if_there(path: Path) -> dict[str, object]:
    return _read_json(path) if path.exists() else {}


def _read_json(path: Path) -> dict[str, object]:
    try:
        content = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not readable JSON: {error}.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} does not hold an object.")
    return content


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > TEXT_LIMIT:
            raise CheckpointError(f"{path} is longer than {TEXT_LIMIT} bytes.")
        return path.read_text("utf-8")
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing.") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not readable text: {error}.") from error


def _ids(config: object) -> frozenset[int]:
    """Return the end ids of a configuration, which names one, several or none."""
    value = config.get("eos_token_id") if isinstance(config, dict) else None
    found = value if isinstance(value, list) else [value]
    return frozenset(token_id for token_id in found if isinstance(token_id, int))
