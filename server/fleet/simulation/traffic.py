"""Traffic: requests as they might come, made from a seed; tenants, their prompts and their turns.

Each tenant has a system prompt of its own, and popular ones ask most (Zipf). A conversation's next
turn begins with all that was said. Prompts are lists of block names, as a front sees them.
"""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

TOKENS_PER_BLOCK = 64
_POPULARITY = 0.9
_SYSTEM_BLOCKS = 12
_TURN_BLOCKS = 3
_THINKING_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request: when it comes, what it asks, and how long its answer will be."""

    time: float
    blocks: tuple[str, ...]
    num_output_tokens: int

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.blocks) * TOKENS_PER_BLOCK


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """What comes: so many conversations a second, for so long."""

    conversations_per_second: float
    seconds: float
    num_tenants: int = 20_000
    max_turns: int = 5
    mean_output_tokens: int = 100
    surge_from: float | None = None
    """When the rate doubles, if it does."""
    seed: int = 1

    def arrivals(self) -> list[Arrival]:
        """All requests in the order of their times."""
        return sorted(self._arrivals(), key=lambda arrival: arrival.time)

    def _arrivals(self) -> Iterator[Arrival]:
        chance = random.Random(self.seed)  # noqa: S311 - nothing is secret here
        weights = [1 / (rank + 1) ** _POPULARITY for rank in range(self.num_tenants)]
        shares = list(itertools.accumulate(weights))
        time = 0.0
        for conversation in itertools.count():
            surged = self.surge_from is not None and time >= self.surge_from
            time += chance.expovariate(self.conversations_per_second * (2 if surged else 1))
            if time >= self.seconds:
                return
            tenant = bisect.bisect(shares, chance.random() * shares[-1])
            said = [f"{tenant}/{block}" for block in range(_SYSTEM_BLOCKS)]
            moment = time
            for turn in range(chance.randint(1, self.max_turns)):
                said += [f"{conversation}.{turn}.{block}" for block in range(_TURN_BLOCKS)]
                length = 1 + int(chance.expovariate(1 / self.mean_output_tokens))
                yield Arrival(moment, tuple(said), length)
                moment += 5 + chance.expovariate(1 / _THINKING_SECONDS)
