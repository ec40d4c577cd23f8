"""fingerprint: a name for the bits that an engine computes; equal names answer alike to the bit.

It covers what an answer depends on: this program's version, its kernels, the checkpoint's files
and the options that change answers. Reads files; owns nothing.
"""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path

from model.native_library import KERNELS_FOLDER
from server.config import EngineConfig
from server.engine.engine_info import EngineInfo
from server.version import VERSION

_CPU = "cpu"
_TORCH = "torch"
_OPTIONS = (
    "quantize",
    "kv_cache_dtype",
    "block_size",
    "attention_window",
    "attention_sinks",
    "tool_call_parser",
    "unknown_fields",
)
"""On which an answer depends, beside what EngineInfo says; the last two are ServerConfig's."""
_hash = partial(hashlib.blake2b, digest_size=16)


def fingerprint(info: EngineInfo, config: EngineConfig) -> str | None:
    """The name of the bits; None where none are promised, on a GPU and with torch.

    It reads the whole checkpoint: about a second for each gigabyte.
    """
    if info.device != _CPU or info.kernels == _TORCH:
        return None
    facts = {
        "version": VERSION,
        "kernels": [info.kernels, files_digest(KERNELS_FOLDER / f"kernels_{info.kernels}.so")],
        "checkpoint": files_digest(Path(info.root)),
        "model": [info.model_name, info.dtype, info.max_model_len],
        "options": [getattr(config, name, None) for name in _OPTIONS],
    }
    return _hash(json.dumps(facts).encode()).hexdigest()


def files_digest(path: Path) -> str:
    """One digest of a file, or of the names and contents of all files in a folder."""
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, _hash).hexdigest()
    files = [each for each in sorted(path.iterdir()) if each.is_file()]
    parts = [f"{each.name} {files_digest(each)}" for each in files]
    return _hash("\n".join(parts).encode()).hexdigest()
