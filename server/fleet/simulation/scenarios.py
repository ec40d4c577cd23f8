"""The questions that are put to a simulated fleet, each as a function from its size to a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from server.fleet.known_blocks import KnownBlocks
from server.fleet.simulation.replica_model import ReplicaModel
from server.fleet.simulation.simulated_replica import SimulatedReplica
from server.fleet.simulation.simulation import Figures, Simulation
from server.fleet.simulation.traffic import Arrival, Traffic

_BEFORE_SECONDS = 5.0
"""Whose answers are counted with a loss: most that run then came no longer before it."""
_WATCH_SECONDS = 0.5
"""How often those who upgrade or scale look."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: what was varied, and what came of it."""

    varied: str
    figures: Figures
    remark: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What all scenarios have in common."""

    model: ReplicaModel
    num_replicas: int
    conversations_per_replica: float
    """A second."""
    seconds: float

    def traffic(self, *, surge_from: float | None = None) -> list[Arrival]:
        """What comes to a fleet of this size."""
        rate = self.conversations_per_replica * self.num_replicas
        return Traffic(
            conversations_per_second=rate, seconds=self.seconds, surge_from=surge_from
        ).arrivals()


Scenario = Callable[[Setting], Iterator[Row]]


def fronts(setting: Setting) -> Iterator[Row]:
    """How many fronts, none of which knows what the others have sent where?"""
    arrivals = setting.traffic()
    for count, by_client in ((1, False), (4, False), (16, False), (64, False), (64, True)):
        known: list[KnownBlocks[int]] = [KnownBlocks() for _ in range(count)]
        simulation = Simulation(setting.model, setting.num_replicas, known, by_client=by_client)
        how = "a client always at the same" if by_client else "clients anywhere"
        yield Row(f"{count} fronts, {how}", Figures.of(simulation.run(arrivals)))


def bounds(setting: Setting) -> Iterator[Row]:
    """How much more than the mean may a home have to do?"""
    arrivals = setting.traffic()
    for factor, slack in ((1.0, 0), (1.25, 4), (1.5, 8), (2.0, 16), (float("inf"), 0)):
        bounded: KnownBlocks[int] = KnownBlocks(load_factor=factor, slack=slack)
        yield _row(f"{factor:g} x mean + {slack}", setting, arrivals, [bounded])
    large: KnownBlocks[int] = KnownBlocks(max_blocks=2_000_000)
    yield _row("1.25 x mean + 4, 2 million blocks known", setting, arrivals, [large])
    nobody: KnownBlocks[int] = KnownBlocks(max_blocks=0)
    yield _row("no index: least loaded", setting, arrivals, [nobody])


def scaling(setting: Setting) -> Iterator[Row]:
    """The rate doubles at a third of the time: what does it cost that new replicas come late?"""
    surge = setting.seconds / 3
    arrivals = setting.traffic(surge_from=surge)
    for delay in (0.0, 10.0, 30.0, 60.0):
        simulation = Simulation(setting.model, setting.num_replicas, [KnownBlocks()])

        def grow(_time: float, simulation: Simulation = simulation) -> None:
            for _ in range(setting.num_replicas):
                simulation.add_replica()

        simulation.at(surge + delay, grow)
        answers = simulation.run(arrivals)
        yield Row(f"{delay:g} s later", Figures.of(answers, since=surge))


def losses(setting: Setting) -> Iterator[Row]:
    """A part of the replicas is lost at half of the time: who waits, and how long?"""
    arrivals, middle = setting.traffic(), setting.seconds / 2
    for percent in (0, 1, 10, 25):
        simulation = Simulation(setting.model, setting.num_replicas, [KnownBlocks()])
        count = setting.num_replicas * percent // 100

        def lose(time: float, simulation: Simulation = simulation, count: int = count) -> None:
            for number in list(simulation.replicas)[:count]:
                simulation.lose(number, time)

        simulation.at(middle, lose)
        answers = simulation.run(arrivals)
        yield Row(f"{percent} % lost", Figures.of(answers, since=middle - _BEFORE_SECONDS))


def upgrades(setting: Setting) -> Iterator[Row]:
    """All replicas are replaced, a part at a time: how long, and what does a cold cache cost?"""
    arrivals = setting.traffic()
    for percent, kind in ((5, "cold"), (20, "cold"), (20, "warm"), (20, "warm, fronts know")):
        simulation = Simulation(setting.model, setting.num_replicas, [KnownBlocks()])
        upgrade = _Upgrade(simulation, setting, percent=percent, kind=kind)
        simulation.at(setting.seconds / 4, upgrade.look)
        answers = simulation.run(arrivals)
        figures = Figures.of(answers, since=setting.seconds / 4)
        remark = f"{upgrade.ended - setting.seconds / 4:.0f} s for all"
        yield Row(f"{percent} % at a time, {kind}", figures, remark)


SCENARIOS: dict[str, Scenario] = {
    "fronts": fronts,
    "bounds": bounds,
    "scaling": scaling,
    "losses": losses,
    "upgrades": upgrades,
}


class _Upgrade:
    """Replaces replicas: some drain, end, and their successors start; then the next ones."""

    def __init__(
        self, simulation: Simulation, setting: Setting, *, percent: int, kind: str
    ) -> None:
        self._simulation = simulation
        self._left = list(simulation.replicas)
        self._size = max(1, setting.num_replicas * percent // 100)
        self._start_seconds = setting.model.start_seconds
        self._is_warm, self._is_known = kind != "cold", kind.endswith("know")
        self._draining: list[int] = []
        self._num_starting = 0
        self.ended = 0.0
        """When the last successor was there."""

    def look(self, time: float) -> None:
        """Go on with whatever is due."""
        simulation = self._simulation
        for number in [each for each in self._draining if simulation.is_drained(each)]:
            self._draining.remove(number)
            old = simulation.replicas[number]
            simulation.lose(number, time)
            self._num_starting += 1
            simulation.at(time + self._start_seconds, partial(self._begin, old, number))
        while self._left and len(self._draining) + self._num_starting < self._size:
            number = self._left.pop(0)
            simulation.drain(number)
            self._draining.append(number)
        if self._left or self._draining or self._num_starting:
            simulation.at(time + _WATCH_SECONDS, self.look)

    def _begin(self, old: SimulatedReplica, number: int, time: float) -> None:
        self._simulation.add_replica(
            old if self._is_warm else None, number=number if self._is_known else None
        )
        self._num_starting -= 1
        self.ended = time


def _row(
    varied: str, setting: Setting, arrivals: Sequence[Arrival], known: list[KnownBlocks[int]]
) -> Row:
    answers = Simulation(setting.model, setting.num_replicas, known).run(arrivals)
    return Row(varied, Figures.of(answers))
