"""PrefixStore: the blocks of the cache that can be shared, in a file, from one run to the next.

    file   magic line | header, one line of JSON | digests, 32 bytes each | blocks | checksum

It is written when the engine stops and read when it starts, each in one go and on the engine
thread. Only an engine that computes the same bits reads it; a file that is another's, damaged or
too large is left alone with one line in the log. It holds what users have said: only its owner can
read it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from cache.manager import KVCacheManager
from cache.pool import KVCachePool
from cache.prefix import DIGEST_BYTES
from server.config import ServerConfig
from server.engine.fingerprint import fingerprint
from server.engine.loaded_engine import LoadedEngine

logger = logging.getLogger(__name__)
_MAGIC = b"kvserve prefix blocks 1\n"
_MAX_HEADER = 4096
_CHUNK_BLOCKS = 64
"""Blocks that are copied at once."""
_CHUNK_BYTES = 2**20
_NAME = "prefix-blocks.kv"
_OWNER_ONLY = 0o600
_hash = partial(hashlib.blake2b, digest_size=32)


def keep_prefixes(loaded: LoadedEngine, config: ServerConfig) -> LoadedEngine:
    """Let an engine begin with what an earlier run has kept, and keep its own in the end.

    Without the option, or where no bits are promised, it is left as it is.
    """
    if config.prefix_store is None:
        return loaded
    identity = fingerprint(loaded.info, config)
    if identity is None or not config.prefix_caching:
        logger.warning("prefix store: not used without native kernels and prefix caching")
        return loaded
    store = PrefixStore(
        config.prefix_store, identity=identity, max_bytes=config.prefix_store_memory
    )
    manager = loaded.engine.scheduler.manager
    store.load(manager, loaded.pool)
    return replace(loaded, on_stop=lambda: store.save(manager, loaded.pool))


@dataclass(frozen=True, slots=True)
class _Header:
    """What a file holds, and for whom."""

    identity: str
    generation: int
    num_blocks: int
    block_bytes: int


class PrefixStore:
    """One file of blocks.

    Args:
        folder: Where it lies; made if it is not there.
        identity: Names the bits that the engine computes.
        max_bytes: Of blocks; of more the most recently used are kept.
    """

    def __init__(self, folder: Path, *, identity: str, max_bytes: int) -> None:
        self._path = folder / _NAME
        self._identity = identity
        self._max_bytes = max_bytes

    def save(self, manager: KVCacheManager, pool: KVCachePool) -> None:
        """Write all blocks that nobody holds and that can be shared; what was there is replaced."""
        content = manager.reusable_content(self._max_bytes // _block_bytes(pool))
        header = _Header(self._identity, manager.generation, len(content), _block_bytes(pool))
        whole = self._path.with_suffix(f".{secrets.token_hex(4)}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
            with os.fdopen(descriptor, "wb") as file:
                _write(file, header, content, pool)
            whole.replace(self._path)
        except OSError as error:
            logger.warning("prefix store: cannot write %s: %s", self._path, error)
            with suppress(OSError):
                whole.unlink(missing_ok=True)
        else:
            logger.info("prefix store: kept %d blocks in %s", len(content), self._path)

    def load(self, manager: KVCacheManager, pool: KVCachePool) -> int:
        """Read the blocks of an earlier run into a cache that is still empty.

        Returns:
            How many blocks were read; 0 if the file is no use.
        """
        try:
            with self._path.open("rb") as file:
                header = self._checked_header(file, pool)
                count = _read(file, header, manager, pool)
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as error:
            logger.warning("prefix store: %s is ignored: %s", self._path, error)
            return 0
        logger.info("prefix store: found %d blocks in %s", count, self._path)
        return count

    def _checked_header(self, file: BinaryIO, pool: KVCachePool) -> _Header:
        """The header of a file that is whole and ours; leaves the file at its digests."""
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError("it is not a file of prefix blocks")
        header = _parsed(file.readline(_MAX_HEADER))
        if header.identity != self._identity or header.block_bytes != _block_bytes(pool):
            raise ValueError("another model, version or form of the cache wrote it")
        start = file.tell()
        size = header.num_blocks * (DIGEST_BYTES + header.block_bytes)
        if os.fstat(file.fileno()).st_size != start + size + _hash().digest_size:
            raise ValueError("it is not whole")
        file.seek(0)
        checksum = _hash()
        rest = start + size
        while rest:
            part = file.read(min(rest, _CHUNK_BYTES))
            checksum.update(part)
            rest -= len(part)
        if file.read() != checksum.digest():
            raise ValueError("its checksum is another")
        file.seek(start)
        return header


def _write(
    file: BinaryIO, header: _Header, content: Sequence[tuple[bytes, int]], pool: KVCachePool
) -> None:
    checksum = _hash()

    def put(data: bytes) -> None:
        checksum.update(data)
        file.write(data)

    put(_MAGIC)
    fields = {name: getattr(header, name) for name in _Header.__slots__}
    put(json.dumps(fields).encode() + b"\n")
    put(b"".join(digest for digest, _ in content))
    for start in range(0, len(content), _CHUNK_BLOCKS):
        ids = [block_id for _, block_id in content[start : start + _CHUNK_BLOCKS]]
        blocks = pool.storage.index_select(2, torch.tensor(ids)).movedim(2, 0).contiguous()
        put(_bytes_of(blocks).numpy().tobytes())
    file.write(checksum.digest())


def _read(file: BinaryIO, header: _Header, manager: KVCacheManager, pool: KVCachePool) -> int:
    """Read as many blocks as there is room for, the most recently used."""
    digests = file.read(header.num_blocks * DIGEST_BYTES)
    skipped = max(0, header.num_blocks - manager.num_free_blocks)
    known = [digests[i : i + DIGEST_BYTES] for i in range(0, len(digests), DIGEST_BYTES)][skipped:]
    block_ids = manager.adopt(known, generation=header.generation)
    file.seek(skipped * header.block_bytes, os.SEEK_CUR)
    one = pool.storage[:, :, 0]
    for start in range(0, len(block_ids), _CHUNK_BLOCKS):
        ids = block_ids[start : start + _CHUNK_BLOCKS]
        data = bytearray(file.read(len(ids) * header.block_bytes))
        blocks = torch.frombuffer(data, dtype=pool.storage.dtype).view(len(ids), *one.shape)
        pool.storage.index_copy_(2, torch.tensor(ids), blocks.movedim(0, 2).contiguous())
    return len(block_ids)


def _parsed(line: bytes) -> _Header:
    try:
        fields = json.loads(line)
        header = _Header(**fields)
    except (ValueError, TypeError):
        raise ValueError("its header cannot be read") from None
    numbers = (header.generation, header.num_blocks, header.block_bytes)
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise ValueError("its header cannot be read")
    return header


def _block_bytes(pool: KVCachePool) -> int:
    """Bytes of one block in all layers."""
    return pool.storage[:, :, 0].nbytes


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)
