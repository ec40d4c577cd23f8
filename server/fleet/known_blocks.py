"""KnownBlocks: which replicas have seen which blocks of prompts, and which of them to prefer.

It remembers what one front has sent where: approximate, as replicas forget and other fronts send
too, and never wrong, as any replica can answer anything. Bounded in blocks and in replicas for
each. Knows nothing of Ray.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

Replica = TypeVar("Replica")
MAX_HOMES = 4
"""Replicas remembered for one block, so that a popular prompt has more than one."""


class KnownBlocks(Generic[Replica]):
    """The homes of blocks, the least recently used forgotten first.

    Args:
        load_factor: How much more than the mean load a home may have and still be preferred.
        slack: How many requests beyond that.
        max_blocks: Most blocks remembered.
    """

    def __init__(
        self, *, load_factor: float = 1.25, slack: int = 4, max_blocks: int = 100_000
    ) -> None:
        self._load_factor = load_factor
        self._slack = slack
        self._max_blocks = max_blocks
        self._homes: OrderedDict[str, list[Replica]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._homes)

    def rank(
        self, blocks: Sequence[str], loads: Mapping[Replica, int]
    ) -> tuple[list[Replica], list[Replica]]:
        """Divide the replicas into those to try first and the others.

        The first are the homes of the deepest known block that are not overloaded. Both lists begin
        anywhere: whoever takes the least loaded of them must not always find the same among equals.

        Args:
            blocks: The digests of the prompt's blocks, the first first.
            loads: Every replica's requests.
        """
        replicas = _turned(list(loads))
        known = self._deepest(blocks)
        bound = self._load_factor * sum(loads.values()) / max(len(loads), 1) + self._slack
        homes = _turned([each for each in known if loads.get(each, math.inf) <= bound])
        return homes, [each for each in replicas if each not in homes] if homes else replicas

    def remember(self, blocks: Sequence[str], replica: Replica) -> None:
        """A request with these blocks was sent to a replica."""
        for block in blocks:
            homes = self._homes.setdefault(block, [])
            if replica not in homes:
                homes.append(replica)
                del homes[:-MAX_HOMES]
            self._homes.move_to_end(block)
        while len(self._homes) > self._max_blocks:
            self._homes.popitem(last=False)

    def _deepest(self, blocks: Sequence[str]) -> Sequence[Replica]:
        for block in reversed(blocks):
            if homes := self._homes.get(block):
                return homes
        return ()


def _turned(replicas: list[Replica]) -> list[Replica]:
    """The same, beginning anywhere."""
    first = random.randrange(len(replicas) or 1)  # noqa: S311 - nothing is secret here
    return replicas[first:] + replicas[:first]
