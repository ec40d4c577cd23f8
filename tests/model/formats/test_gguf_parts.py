"""GGUF models in several files."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from model.errors import CheckpointError
from model.formats.gguf_parts import open_gguf


def write_part(folder: Path, number: int, count: int, names: list[str], *, total: int) -> Path:
    path = folder / f"m-{number:05}-of-{count:05}.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint16("split.no", number - 1)
    writer.add_uint16("split.count", count)
    writer.add_int32("split.tensors.count", total)
    if number == 1:
        writer.add_context_length(77)
    for index, name in enumerate(names):
        writer.add_tensor(name, np.full((2, 3), 10 * number + index, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_parts_are_one_model(tmp_path: Path) -> None:
    """Whichever part is named, all tensors are there with their own numbers."""
    parts = [
        write_part(tmp_path, 1, 3, ["a", "b"], total=4),
        write_part(tmp_path, 2, 3, ["c"], total=4),
        write_part(tmp_path, 3, 3, ["d"], total=4),
    ]
    for path in parts:
        file = open_gguf(path)
        assert file.metadata["llama.context_length"] == 77
        found = {
            name: float(file.read(tensor).view(np.float32)[0])
            for name, tensor in file.tensors.items()
        }
        assert found == {"a": 10, "b": 11, "c": 20, "d": 30}


def test_what_does_not_fit_together_is_named(tmp_path: Path) -> None:
    """A missing part, a repeated tensor, a lost one and a lone part are each named."""
    first = write_part(tmp_path, 1, 2, ["a"], total=2)
    with pytest.raises(CheckpointError, match=r"one of 2 parts; missing: m-00002-of-00002\.gguf"):
        open_gguf(first)
    write_part(tmp_path, 2, 2, ["a"], total=2)
    with pytest.raises(CheckpointError, match=r"m-00002-of-00002\.gguf repeats the tensor a"):
        open_gguf(first)
    write_part(tmp_path, 2, 2, ["b", "c"], total=2)
    with pytest.raises(CheckpointError, match="hold 3 tensors; expected 2"):
        open_gguf(first)
    alone = first.rename(tmp_path / "alone.gguf")
    with pytest.raises(CheckpointError, match=r"alone\.gguf is one of 2 parts"):
        open_gguf(alone)
