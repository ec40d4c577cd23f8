"""A GGUF file is read within bounds, whatever it claims."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_twins import write_twin

from model.errors import CheckpointError
from model.formats.gguf_file import COUNT_LIMIT, ELEMENT_LIMIT, METADATA_LIMIT, GGUFFile

U8, U32, STRING, ARRAY = 0, 4, 8, 9
F32, Q4_0, Q8_K = 0, 2, 15


def _text(content: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(content) if length is None else length) + content


def _key(name: bytes, kind: int, value: bytes) -> bytes:
    return _text(name) + struct.pack("<I", kind) + value


def _array(kind: int, count: int, content: bytes = b"") -> bytes:
    return _key(b"a", ARRAY, struct.pack("<IQ", kind, count) + content)


def _tensor(
    name: bytes = b"t",
    *,
    dims: tuple[int, ...] = (4,),
    num_dims: int | None = None,
    kind: int = F32,
    offset: int = 0,
) -> bytes:
    count = len(dims) if num_dims is None else num_dims
    return (
        _text(name)
        + struct.pack(f"<I{len(dims)}Q", count, *dims)
        + struct.pack("<IQ", kind, offset)
    )


def _file(
    *parts: bytes,
    keys: int = 0,
    tensors: int = 0,
    version: int = 3,
    magic: bytes = b"GGUF",
) -> bytes:
    header = magic + struct.pack("<IQQ", version, tensors, keys)
    return header + b"".join(parts)


DATA = bytes(4096)
TYPE = "has the type Q8_K; supported are F32, F16"

HOSTILE = {
    "empty": (b"", "does not begin with the letters GGUF"),
    "another format": (b"PK\x03\x04" + DATA, "does not begin with the letters GGUF"),
    "only the magic": (b"GGUF", "ends within its header"),
    "version 1": (_file(version=1), "version is 1"),
    "big-endian": (_file(version=3 << 24), "little-endian"),
    "countless tensors": (_file(tensors=2**60), f"tensors; the limit is {COUNT_LIMIT}"),
    "countless keys": (_file(keys=2**64 - 1), f"metadata keys; the limit is {COUNT_LIMIT}"),
    "keys past the end": (_file(keys=5), "past the end of the file"),
    "tensors past the end": (_file(tensors=5), "past the end of the file"),
    "long key": (_file(_text(b"k", 2**62), DATA, keys=1), "past the end of the file"),
    "key beyond 64 bits": (_file(_text(b"k", 2**64 - 1), DATA, keys=1), "past the end of the file"),
    "long string": (_file(_key(b"k", STRING, _text(b"", 2**63)), keys=1), "past the end"),
    "long array": (_file(_array(U8, 2**21), DATA, keys=1), "past the end of the file"),
    "absurd array": (_file(_array(U8, 2**60), keys=1), f"more than {ELEMENT_LIMIT} elements"),
    "absurd strings": (_file(_array(STRING, 2**63), keys=1), f"more than {ELEMENT_LIMIT} elements"),
    "string in array": (_file(_array(STRING, 1, _text(b"", 2**40)), keys=1), "past the end"),
    "array of arrays": (_file(_array(ARRAY, 1), DATA, keys=1), "array of type ARRAY"),
    "unknown type": (_file(_key(b"k", 99, DATA), keys=1), "99 is not a valid GGUFValueType"),
    "no UTF-8 key": (_file(_key(b"\xff", U8, b"\0"), keys=1), "can't decode byte 0xff"),
    "no UTF-8 value": (_file(_key(b"k", STRING, _text(b"\xff")), keys=1), "can't decode byte 0xff"),
    "twice the key": (_file(_key(b"k", U8, b"\0") * 2, keys=2), "Duplicate k"),
    "twice the tensor": (_file(_tensor() * 2, DATA, tensors=2), "tensor t appears twice"),
    "absurd alignment": (
        _file(_key(b"general.alignment", U32, struct.pack("<I", 3)), keys=1),
        "alignment: must be a non-zero power of two",
    ),
    "control characters": (_file(_tensor(b"\x1b[2J"), DATA, tensors=1), "'.x1b.2J'"),
    "no dimension": (_file(_tensor(dims=()), DATA, tensors=1), "has the dimensions"),
    "empty dimension": (_file(_tensor(dims=(4, 0)), DATA, tensors=1), r"dimensions \(0, 4\)"),
    "five dimensions": (_file(_tensor(dims=(1,) * 5), DATA, tensors=1), "expected 1 to 4"),
    "dimensions past the end": (
        _file(_tensor(num_dims=2**32 - 1), DATA, tensors=1),
        "past the end",
    ),
    "large dimensions": (_file(_tensor(dims=(2**32,)), DATA, tensors=1), "ends at byte 17179869"),
    "product beyond 64 bits": (
        _file(_tensor(dims=(2**32,) * 3), DATA, tensors=1),
        "of a file of",
    ),
    "half a block": (_file(_tensor(dims=(48, 2), kind=Q4_0), DATA, tensors=1), "Q4_0 blocks"),
    "vector in blocks": (_file(_tensor(dims=(32,), kind=Q4_0), DATA, tensors=1), "is a vector in"),
    "unsupported blocks": (_file(_tensor(dims=(256, 1), kind=Q8_K), DATA, tensors=1), TYPE),
    "unknown blocks": (_file(_tensor(kind=999), DATA, tensors=1), "999 is not a valid"),
    "offset past the end": (_file(_tensor(offset=8192), DATA, tensors=1), "ends at byte 82"),
    "absurd offset": (_file(_tensor(offset=2**64 - 1), DATA, tensors=1), "of a file of"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file(tmp_path: Path, name: str) -> None:
    """A file that lies about itself ends in one sentence and takes little memory."""
    content, reason = HOSTILE[name]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=reason) as caught:
        GGUFFile.open(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert peak < 2**22


def test_metadata_limit(tmp_path: Path) -> None:
    """Metadata beyond the limit are refused even where the file is as large as it says."""
    path = tmp_path / "sparse.gguf"
    path.write_bytes(_file(_key(b"k", STRING, _text(b"", 2**32)), keys=1))
    with path.open("r+b") as file:
        file.truncate(2**33)
    with pytest.raises(CheckpointError, match=f"longer than {METADATA_LIMIT} bytes"):
        GGUFFile.open(path)


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there is named."""
    with pytest.raises(CheckpointError, match=r"nowhere\.gguf: No such file"):
        GGUFFile.open(tmp_path / "nowhere.gguf")


@pytest.fixture(scope="module")
def twin(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A whole, sound file."""
    path = tmp_path_factory.mktemp("twin") / "twin.gguf"
    return write_twin(checkpoint("rand-llama-untied"), path).read_bytes()


def test_truncated_file(twin: bytes, tmp_path: Path) -> None:
    """A sound file cut anywhere, at half of it too, is refused."""
    path = tmp_path / "cut.gguf"
    for length in [*range(0, len(twin), len(twin) // 200), len(twin) // 2, len(twin) - 128]:
        path.write_bytes(twin[:length])
        with pytest.raises(CheckpointError):
            GGUFFile.open(path)


def test_mutated_file(twin: bytes, tmp_path: Path) -> None:
    """Random bytes written into the header are read as something or refused, never a crash."""
    path = tmp_path / "mutated.gguf"
    dice = random.Random(7)
    refused = 0
    for _ in range(300):
        content = bytearray(twin)
        for _ in range(dice.randint(1, 4)):
            content[dice.randrange(12000)] = dice.choice([0, 1, 9, 127, 255])
        path.write_bytes(content)
        try:
            GGUFFile.open(path)
        except CheckpointError:
            refused += 1
    assert 30 < refused < 300


def test_metadata_values(tmp_path: Path) -> None:
    """Metadata come back as the plain values that the package's writer was given."""
    values = {
        "text": ("wörld", gguf.GGUFValueType.STRING),
        "flag": (True, gguf.GGUFValueType.BOOL),
        "small": (-3, gguf.GGUFValueType.INT8),
        "large": (2**63, gguf.GGUFValueType.UINT64),
        "real": (0.5, gguf.GGUFValueType.FLOAT32),
        "texts": (["", "a", "漢字"], gguf.GGUFValueType.ARRAY),
        "numbers": ([1, -2, 3], gguf.GGUFValueType.ARRAY),
        "reals": ([0.25, -1.5], gguf.GGUFValueType.ARRAY),
        "flags": ([True, False], gguf.GGUFValueType.ARRAY),
    }
    writer = gguf.GGUFWriter(tmp_path / "values.gguf", "llama")
    for key, (value, kind) in values.items():
        writer.add_key_value(key, value, kind)
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    writer.add_tensor("matrix", matrix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    file = GGUFFile.open(tmp_path / "values.gguf")

    assert file.metadata == {"general.architecture": "llama"} | {
        k: v for k, (v, _) in values.items()
    }
    tensor = file.tensors["matrix"]
    assert (tensor.shape, tensor.qtype.name) == ((3, 4), "F32")
    assert np.array_equal(file.read(tensor).view(np.float32).reshape(3, 4), matrix)


def test_file_cut_after_opening(tmp_path: Path) -> None:
    """A file that shrinks between opening and reading is refused, not read as zeros."""
    path = tmp_path / "shrunk.gguf"
    path.write_bytes(_file(_tensor(dims=(64, 16)), DATA + bytes(64), tensors=1))
    file = GGUFFile.open(path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="cut short while t was read"):
        file.read(file.tensors["t"])
