"""server.fleet.simulation: every request ends, books agree, known cases come out as reckoned."""

from __future__ import annotations

import pytest

from server.fleet.known_blocks import KnownBlocks
from server.fleet.simulation.replica_model import ReplicaModel
from server.fleet.simulation.simulation import Figures, Simulation
from server.fleet.simulation.traffic import TOKENS_PER_BLOCK, Arrival, Traffic

MODEL = ReplicaModel(
    prefill_rate=TOKENS_PER_BLOCK, step_base=0.0, step_per_row=0.5, max_num_seqs=2, num_blocks=100
)


def simulate(arrivals, *, replicas=1, model=MODEL, events=()):
    simulation = Simulation(model, replicas, [KnownBlocks()])
    for time, action in events:
        simulation.at(time, lambda now, action=action: action(simulation, now))
    return simulation, simulation.run(arrivals)


def test_one_request_takes_as_long_as_its_model_says():
    """Three blocks at a second each, then five tokens at half a second each."""
    _, (answer,) = simulate([Arrival(10.0, ("a", "b", "c"), 5)])
    assert answer.first_token_time == 13.5
    assert answer.end_time == 15.5


def test_prompts_follow_each_other_and_a_known_one_costs_nothing():
    """The second prompt waits for the first; the same prompt again is found in the cache."""
    arrivals = [Arrival(0.0, ("a", "b"), 1), Arrival(0.0, ("c",), 1), Arrival(50.0, ("a", "b"), 1)]
    _, answers = simulate(arrivals)
    assert [answer.first_token_time for answer in answers] == [2.5, 4.0, 50.5]
    assert Figures.of(answers).hit_rate == 2 / 5


def test_whoever_finds_no_seat_waits():
    """With two seats the third answer begins when the first has ended."""
    arrivals = [Arrival(0.0, (), 4) for _ in range(3)]
    _, answers = simulate(arrivals)
    assert answers[2].first_token_time >= answers[0].end_time


def test_a_lost_replica_loses_no_answer():
    """What it had goes on at another one: prompt and tokens are read anew, none is said twice."""
    arrivals = [Arrival(0.0, ("a",), 10)]

    def lose(simulation, now):
        (number,) = [n for n, replica in simulation.replicas.items() if replica.load]
        simulation.lose(number, now)

    _, (answer,) = simulate(arrivals, replicas=2, events=[(3.6, lose)])
    had = 5  # at 1.5, 2.0, ... 3.5 s
    reading = 1 + had / TOKENS_PER_BLOCK
    assert answer.num_moves == 1
    assert answer.end_time == pytest.approx(3.6 + reading + 0.5 * (10 - had))


@pytest.mark.parametrize("loss", [False, True])
def test_every_request_ends_and_the_books_agree(loss):
    """Whatever happens, each answer has its first token, and in the end nobody holds anything."""
    traffic = Traffic(conversations_per_second=3, seconds=60, num_tenants=50).arrivals()
    fast = ReplicaModel(prefill_rate=2000, step_base=0.01, step_per_row=0.001, max_num_seqs=4)
    events = [(30.0, lambda s, now: [s.lose(n, now) for n in list(s.replicas)[:3]])] if loss else []
    simulation, answers = simulate(traffic, replicas=8, model=fast, events=events)
    assert len(answers) == len(traffic)
    assert Figures.of(answers).num_lost == 0
    assert {replica.load for replica in simulation.replicas.values()} == {0}
    assert set(simulation._loads.values()) == {0}


def test_traffic_is_made_from_its_seed():
    """The same seed is the same traffic; a surge doubles its rate from then on."""
    one, same = (Traffic(conversations_per_second=5, seconds=50).arrivals() for _ in range(2))
    assert one == same
    surged = Traffic(conversations_per_second=20, seconds=100, surge_from=50, max_turns=1)
    times = [arrival.time for arrival in surged.arrivals()]
    late = sum(time >= 50 for time in times)
    assert 1.7 < late / (len(times) - late) < 2.3


def test_a_model_is_fitted_through_two_points():
    """It reproduces the figures that it was made from."""
    model = ReplicaModel.fitted(prefill_rate=1000, alone=50, crowd=320, rows=16)
    assert model.step_seconds(1) == pytest.approx(1 / 50)
    assert model.step_seconds(16) == pytest.approx(16 / 320)
