"""FamilyCase: what the tests need to know of one architecture, a file each in family_cases.

A random configuration of transformers, and how the conversion would write its GGUF twin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from transformers import PretrainedConfig

Array = npt.NDArray[np.float32]
Shape = dict[str, Any]


def hub_tensors(name: str, weight: Array, config: PretrainedConfig) -> Iterator[tuple[str, Array]]:
    """A tensor as it is in the folder: most conversions only rename."""
    del config
    yield name, weight


def interleaved_heads(
    name: str, weight: Array, config: PretrainedConfig
) -> Iterator[tuple[str, Array]]:
    """The row order that the conversion gives a llama's queries and keys."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    count = heads.get(name.split(".")[-2])
    if count:
        half = weight.shape[0] // count // 2
        halves = weight.reshape(count, 2, half, *weight.shape[1:])
        weight = halves.swapaxes(1, 2).reshape(weight.shape)
    yield name, weight


def no_fields(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    """Metadata beyond sizes, norms and the rotary base: none."""


@dataclass(frozen=True, kw_only=True)
class FamilyCase:
    """One architecture."""

    make: Callable[[Shape], dict[str, PretrainedConfig]]
    """From the sizes that all have in common to configurations by the names of checkpoints."""
    arch: gguf.MODEL_ARCH
    add_fields: Callable[[gguf.GGUFWriter, PretrainedConfig], None] = no_fields
    convert: Callable[[str, Array, PretrainedConfig], Iterator[tuple[str, Array]]] = hub_tensors
    """From a folder's tensor to those of a GGUF file, still under the folder's names."""
    stack: Callable[[dict[str, Array]], dict[str, Array]] = lambda tensors: tensors
    """From all converted tensors to those that are written, experts in one."""
    gguf_architecture: str | None = None
    """What we call the model of a GGUF file, if not what the folder says."""
    has_twin: Callable[[PretrainedConfig], bool] = lambda config: True
    """Whether a GGUF file can say what a configuration says."""


@cache
def family_cases() -> tuple[FamilyCase, ...]:
    """Every case that has a file."""
    files = sorted((Path(__file__).parent / "family_cases").glob("*.py"))
    return tuple(import_module(f"family_cases.{file.stem}").CASE for file in files)


def case_of(config: PretrainedConfig) -> FamilyCase | None:
    """The case of a configuration's architecture, if it has a file."""
    shape = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4}
    for case in family_cases():
        if config.model_type in {made.model_type for made in case.make(shape).values()}:
            return case
    return None
