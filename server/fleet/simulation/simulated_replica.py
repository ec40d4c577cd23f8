"""SimulatedReplica: what one replica remembers and does, by its model; the simulation owns it."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

from server.fleet.simulation.replica_model import ReplicaModel
from server.fleet.simulation.traffic import TOKENS_PER_BLOCK, Arrival


@dataclass(slots=True)
class SimulatedAnswer:
    """A request on its way through the fleet."""

    arrival: Arrival
    first_token_time: float | None = None
    token_seconds: float = 0.0
    """Between its tokens, as planned."""
    end_time: float = 0.0
    num_hit_blocks: int = 0
    num_moves: int = 0
    """How often it went on at another replica."""

    def tokens_by(self, time: float) -> int:
        """How many tokens it has had."""
        if self.first_token_time is None or time < self.first_token_time:
            return 0
        passed = int((time - self.first_token_time) / max(self.token_seconds, 1e-9)) + 1
        return min(passed, self.arrival.num_output_tokens)


class SimulatedReplica:
    """A replica with seats, a queue before them, and a cache that forgets what is not used.

    Args:
        model: Its times and sizes.
    """

    def __init__(self, model: ReplicaModel) -> None:
        self.model = model
        self.running: set[int] = set()
        """Numbers of the answers that it works on."""
        self.waiting: deque[int] = deque()
        self.cache: OrderedDict[str, None] = OrderedDict()
        self._prefill_free = 0.0

    @property
    def load(self) -> int:
        """Requests in it, waiting ones too."""
        return len(self.running) + len(self.waiting)

    def start(self, answer: SimulatedAnswer, time: float) -> float:
        """Begin with an answer, or go on with it; returns when it will end.

        What it has already is read as a part of the prompt.
        """
        arrival = answer.arrival
        hit = self._remember(arrival.blocks)
        had = answer.tokens_by(time) if answer.num_moves else 0
        missing = (len(arrival.blocks) - hit) * TOKENS_PER_BLOCK + had
        self._prefill_free = max(time, self._prefill_free) + self.model.prefill_seconds(missing)
        step = self.model.step_seconds(len(self.running) + 1)
        first = self._prefill_free + step
        left = arrival.num_output_tokens - had
        if answer.first_token_time is None:
            answer.first_token_time = first
            answer.num_hit_blocks = hit
        answer.token_seconds = step
        answer.end_time = first + max(left - 1, 0) * step
        return answer.end_time

    def _remember(self, blocks: tuple[str, ...]) -> int:
        """Look a prompt up and keep it; returns how many blocks were there from its beginning."""
        hit = 0
        for block in blocks:
            if block not in self.cache:
                break
            hit += 1
        for block in blocks:
            self.cache[block] = None
            self.cache.move_to_end(block)
        while len(self.cache) > self.model.num_blocks:
            self.cache.popitem(last=False)
        return hit
