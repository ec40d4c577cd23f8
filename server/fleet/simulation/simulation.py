"""Simulation: traffic through fronts to replicas, with what may happen to these, on an event heap.

The fronts route by the real KnownBlocks, each with knowledge of its own. They see the replicas'
true loads. Events are exact; what a replica does in between is its model's.
"""

from __future__ import annotations

import heapq
import itertools
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from server.fleet.known_blocks import KnownBlocks
from server.fleet.simulation.replica_model import ReplicaModel
from server.fleet.simulation.simulated_replica import SimulatedAnswer, SimulatedReplica
from server.fleet.simulation.traffic import Arrival


@dataclass(frozen=True, slots=True)
class Figures:
    """What came of a simulation."""

    num_requests: int
    hit_rate: float
    """Blocks of prompts that were cached, from 0 to 1."""
    first_token_p50: float
    first_token_p99: float
    num_moves: int
    """Answers that went on elsewhere."""
    num_lost: int
    end_time: float

    @classmethod
    def of(cls, answers: Sequence[SimulatedAnswer], *, since: float = 0.0) -> Figures:
        """The figures of the answers to what came from a time on."""
        chosen = [each for each in answers if each.arrival.time >= since]
        done = [each for each in chosen if each.first_token_time is not None]
        waits = sorted(each.first_token_time - each.arrival.time for each in done
                       if each.first_token_time is not None)  # fmt: skip
        blocks = sum(len(each.arrival.blocks) for each in done)
        return cls(
            num_requests=len(chosen),
            hit_rate=sum(each.num_hit_blocks for each in done) / max(blocks, 1),
            first_token_p50=waits[len(waits) // 2],
            first_token_p99=waits[int(len(waits) * 0.99)],
            num_moves=sum(each.num_moves for each in chosen),
            num_lost=len(chosen) - len(done),
            end_time=max(each.end_time for each in done),
        )


class Simulation:
    """One fleet and its time.

    Args:
        model: Of each replica.
        num_replicas: At the beginning.
        fronts: What each front knows.
        by_client: Whether a client always comes to the same front, or to one after the other.
    """

    def __init__(
        self,
        model: ReplicaModel,
        num_replicas: int,
        fronts: Sequence[KnownBlocks[int]],
        *,
        by_client: bool = False,
    ) -> None:
        self._model = model
        self._fronts = fronts
        self._by_client = by_client
        self._numbers = itertools.count()
        self.replicas: dict[int, SimulatedReplica] = {}
        self.answers: list[SimulatedAnswer] = []
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._loads: dict[int, int] = {}
        for _ in range(num_replicas):
            self.add_replica()

    def add_replica(
        self, predecessor: SimulatedReplica | None = None, *, number: int | None = None
    ) -> None:
        """Let a replica take requests from now on.

        Args:
            predecessor: Whose cache it begins with; an empty one if none.
            number: By which the fronts know it; a new one if none.
        """
        replica = SimulatedReplica(self._model)
        if predecessor is not None:
            replica.cache = predecessor.cache
        number = next(self._numbers) if number is None else number
        self.replicas[number] = replica
        self._loads[number] = 0

    def lose(self, number: int, time: float) -> None:
        """Take a replica away at once; its answers go on at others."""
        replica = self.replicas.pop(number)
        self._loads.pop(number, None)
        for answer_id in [*replica.running, *replica.waiting]:
            answer = self.answers[answer_id]
            answer.num_moves += answer.first_token_time is not None
            self._send(answer_id, time)

    def drain(self, number: int) -> None:
        """Let a replica finish what it has and take nothing new."""
        self._loads.pop(number, None)

    def is_drained(self, number: int) -> bool:
        """Whether a replica that takes nothing new has finished."""
        return self.replicas[number].load == 0

    def at(self, time: float, action: Callable[[float], None]) -> None:
        """Let something happen at a time; the action is told that time."""
        heapq.heappush(self._events, (time, next(self._numbers), action))

    def run(self, arrivals: Sequence[Arrival]) -> list[SimulatedAnswer]:
        """Run to the end of all answers and return them."""
        for arrival in arrivals:
            self.at(arrival.time, lambda time, arrival=arrival: self._arrive(arrival, time))  # type: ignore[misc]  # bound now
        while self._events:
            time, _, action = heapq.heappop(self._events)
            action(time)
        return self.answers

    def _arrive(self, arrival: Arrival, time: float) -> None:
        self.answers.append(SimulatedAnswer(arrival))
        self._send(len(self.answers) - 1, time)

    def _send(self, answer_id: int, time: float) -> None:
        """Route an answer, and start it if there is a seat."""
        blocks = self.answers[answer_id].arrival.blocks
        turn = zlib.crc32(blocks[0].encode()) if self._by_client and blocks else answer_id
        front = self._fronts[turn % len(self._fronts)]
        homes, others = front.rank(blocks, self._loads)
        chosen = min(homes or others, key=self._loads.__getitem__)
        front.remember(blocks, chosen)
        self._loads[chosen] += 1
        replica = self.replicas[chosen]
        if len(replica.running) < self._model.max_num_seqs:
            self._start(answer_id, chosen, time)
        else:
            replica.waiting.append(answer_id)

    def _start(self, answer_id: int, number: int, time: float) -> None:
        replica = self.replicas[number]
        end = replica.start(self.answers[answer_id], time)
        replica.running.add(answer_id)
        self.at(end, lambda now: self._end(answer_id, number, now))

    def _end(self, answer_id: int, number: int, time: float) -> None:
        replica = self.replicas.get(number)
        if replica is None or answer_id not in replica.running:
            return  # it went on elsewhere
        replica.running.remove(answer_id)
        if number in self._loads:
            self._loads[number] -= 1
        if replica.waiting:
            self._start(replica.waiting.popleft(), number, time)
