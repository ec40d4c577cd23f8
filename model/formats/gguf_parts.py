"""open_gguf: a GGUF file, or all parts of one that was split, as one GGUFFile.

Parts are named NAME-00001-of-000NN.gguf and lie side by side; the first holds the metadata. The
layout is that of llama.cpp's gguf-split.
"""

from __future__ import annotations

import re
from pathlib import Path

from model.errors import CheckpointError
from model.formats.gguf_file import GGUFFile, GGUFTensor

PART_NAME = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
MAX_PARTS = 999


def open_gguf(path: Path) -> GGUFFile:
    """Read everything but the weights.

    Args:
        path: The file, or any part of a split one.

    Raises:
        CheckpointError: A file is not GGUF, is broken, or exceeds a limit; a part is missing.
    """
    paths = part_paths(path)
    first, *others = (GGUFFile.open(part) for part in paths)
    count = first.metadata.get("split.count", 1)
    if count not in (0, 1) and count != len(paths):
        raise CheckpointError(
            f"{path.name} is one of {count} parts; they must lie side by side, named "
            f"NAME-00001-of-{count:05}.gguf and so on, or be joined into one file."
        )
    tensors: dict[str, GGUFTensor] = dict(first.tensors)
    for part in others:
        twice = tensors.keys() & part.tensors.keys()
        if twice:
            raise CheckpointError(f"{part.path.name} repeats the tensor {min(twice)}.")
        tensors |= part.tensors
    expected = first.metadata.get("split.tensors.count", len(tensors))
    if expected != len(tensors):
        raise CheckpointError(
            f"The parts of {path.name} hold {len(tensors)} tensors; expected {expected}."
        )
    return GGUFFile(first.path, first.metadata, tensors)


def part_paths(path: Path) -> list[Path]:
    """Return all parts of the model that a file belongs to, which may be the file alone.

    Raises:
        CheckpointError: A part is missing.
    """
    match = PART_NAME.fullmatch(path.name)
    if not match:
        return [path]
    count = min(int(match["count"]), MAX_PARTS)
    parts = [
        path.with_name(f"{match['name']}-{number:05}-of-{match['count']}.gguf")
        for number in range(1, count + 1)
    ]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise CheckpointError(f"{path.name} is one of {count} parts; missing: {missing[0]}.")
    return parts
