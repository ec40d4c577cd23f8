"""PrefixIndex: which block holds the keys and values of a given beginning of a text.

It maps digests to block ids and back. It never counts holders and never frees a block; the
manager, which owns it, tells it what was written and what was evicted.

A key or value depends on all tokens up to its own, so a block may stand in for another only if
everything before it is equal too. Each full block is therefore named by a chain of digests:

    root    = H(salt)
    digest1 = H(root    + tokens of block 1)      "The quick brown fox "   -> block 7
    digest2 = H(digest1 + tokens of block 2)      "jumps over the lazy "   -> block 3
    digest3 = H(digest2 + tokens of block 3)      "dog. Then it sleeps "   -> block 9

To find a shared beginning is to walk the chain until a digest is unknown. H is cryptographic
(BLAKE2b, RFC 7693): nobody can craft a prompt that collides with, and so reads, another's cache.
A salt starts a chain of its own: requests with different salts have no block in common.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

DIGEST_BYTES = 32


class PrefixMatch(NamedTuple):
    """The blocks found for the beginning of a text, and the digest to continue the chain from."""

    block_ids: list[int]
    digest: bytes


class PrefixIndex:
    """Full blocks by the digest of everything before and in them.

    Args:
        block_size: Tokens in a block.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._blocks: dict[bytes, int] = {}
        self._digests: dict[int, bytes] = {}
        self._generation = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[int]:
        """The ids of all known blocks."""
        return iter(self._digests)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._digests

    @property
    def generation(self) -> int:
        """How often everything was forgotten; chains of another generation lead nowhere."""
        return self._generation

    def digest_of(self, block_id: int) -> bytes:
        """The name of a known block."""
        return self._digests[block_id]

    def continue_from(self, generation: int) -> None:
        """Take up the chains of another index; this one must be empty."""
        assert not self._blocks, "chains of two generations would be mixed"
        self._generation = generation

    def root(self, salt: str) -> bytes:
        """The digest that starts the chains of one salt."""
        # `person` keeps roots apart from blocks: no salt spells out a block's hash input.
        data = f"{self._generation}:{salt}".encode("utf-8", "surrogatepass")
        return blake2b(data, digest_size=DIGEST_BYTES, person=b"prefix root").digest()

    def chain(self, parent: bytes, token_ids: Sequence[int]) -> bytes:
        """The digest of one full block that follows `parent`."""
        assert len(token_ids) == self._block_size, "only full blocks have a digest"
        data = parent + array("q", token_ids).tobytes()
        return blake2b(data, digest_size=DIGEST_BYTES, person=b"prefix block").digest()

    def match(self, token_ids: Sequence[int], *, salt: str) -> PrefixMatch:
        """Find the longest run of known full blocks at the beginning of `token_ids`."""
        block_ids: list[int] = []
        digest = self.root(salt)
        for start in range(0, len(token_ids) - self._block_size + 1, self._block_size):
            following = self.chain(digest, token_ids[start : start + self._block_size])
            block_id = self._blocks.get(following)
            if block_id is None:
                break
            block_ids.append(block_id)
            digest = following
        return PrefixMatch(block_ids, digest)

    def insert(self, digest: bytes, block_id: int) -> None:
        """Make a fully written block findable.

        If two requests computed the same beginning side by side, the first block stays the known
        one and the second remains its request's own.
        """
        assert block_id not in self._digests, f"block {block_id} is indexed already"
        if digest not in self._blocks:
            self._blocks[digest] = block_id
            self._digests[block_id] = digest

    def forget(self, block_id: int) -> None:
        """Remove a block whose content is about to be lost."""
        del self._blocks[self._digests.pop(block_id)]

    def clear(self) -> None:
        """Forget every block, and also what requests now running will still insert.

        Those go on with chains from a root that no later request starts from.
        """
        self._blocks.clear()
        self._digests.clear()
        self._generation += 1

    def check_integrity(self) -> None:
        """Assert that digest to block and block to digest say the same."""
        assert {block: digest for digest, block in self._blocks.items()} == self._digests
