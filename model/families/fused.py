"""How matrices that stand in one stored tensor are taken apart, by their rows."""

from __future__ import annotations

from collections.abc import Iterator

from model.config import ModelConfig
from model.families.tensor_parts import TensorPart


def split_qkv(
    prefix: str, kind: str, shape: tuple[int, ...], config: ModelConfig, *, stored: str
) -> Iterator[TensorPart]:
    """Split queries, keys and values.

    Args:
        prefix: Of the names that result, up to self_attn.
        kind: weight or bias.
        shape: Of the stored tensor; if it does not fit, it is handed on under its own name.
        config: The model's.
        stored: The stored tensor's name.
    """
    query, key_value = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    sizes = {"q": query, "k": key_value, "v": key_value}
    names = {f"{prefix}{letter}_proj.{kind}": size for letter, size in sizes.items()}
    yield from _split(names, shape, stored=stored)


def split_gate_up(
    prefix: str, kind: str, shape: tuple[int, ...], config: ModelConfig, *, stored: str
) -> Iterator[TensorPart]:
    """Split an MLP's gate and what it gates; the arguments are those of split_qkv."""
    size = config.intermediate_size
    names = {f"{prefix}gate_proj.{kind}": size, f"{prefix}up_proj.{kind}": size}
    yield from _split(names, shape, stored=stored)


def _split(names: dict[str, int], shape: tuple[int, ...], *, stored: str) -> Iterator[TensorPart]:
    if shape[0] != sum(names.values()):
        yield TensorPart(name=stored)
        return
    start = 0
    for name, size in names.items():
        yield TensorPart(name=name, rows=slice(start, start + size))
        start += size
