"""Chance: what one exchange draws at random, and when it began; another process can do the same.

Ids and seeds that nobody gave are drawn from here and not from the system, so that whoever knows
an exchange's chance writes its answer again to the byte. Belongs to the exchange.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Self

_SECRET_BYTES = 16


@dataclass(slots=True)
class Chance:
    """A stream of random bytes that follows from a secret: BLAKE2b, keyed, of a counter."""

    secret: bytes
    began: int
    """Unix time in whole seconds."""
    _num_draws: int = field(default=0, init=False)

    @classmethod
    def new(cls) -> Self:
        """One that nobody has met before."""
        return cls(secrets.token_bytes(_SECRET_BYTES), int(time.time()))

    def token(self, num_bytes: int) -> str:
        """Random bytes as twice as many hexadecimal digits.

        Args:
            num_bytes: At most 64.
        """
        self._num_draws += 1
        counter = self._num_draws.to_bytes(8, "little")
        return blake2b(counter, key=self.secret, digest_size=num_bytes).hexdigest()

    def bits(self, count: int) -> int:
        """A random integer of that many bits."""
        num_bytes = -(-count // 8)
        return int(self.token(num_bytes), 16) >> (8 * num_bytes - count)
