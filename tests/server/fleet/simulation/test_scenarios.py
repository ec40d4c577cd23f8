"""server.fleet.simulation.scenarios: small fleets answer as large ones are asked to."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from server.cli import app
from server.fleet.simulation.replica_model import ReplicaModel
from server.fleet.simulation.scenarios import SCENARIOS, Setting

SETTING = Setting(
    model=ReplicaModel(
        prefill_rate=2000, step_base=0.01, step_per_row=0.001, max_num_seqs=8, start_seconds=2
    ),
    num_replicas=8,
    conversations_per_replica=0.3,
    seconds=40,
)


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_scenario_loses_a_request(name):
    """Each line of each table counts all requests, and all of them had an answer."""
    rows = list(SCENARIOS[name](SETTING))
    assert len(rows) >= 3
    assert len({row.varied for row in rows}) == len(rows)
    assert all(row.figures.num_lost == 0 and row.figures.num_requests > 50 for row in rows)


def test_an_index_finds_more_than_none():
    """Routing by known blocks caches more of the prompts than routing by load alone."""
    rows = {row.varied: row.figures.hit_rate for row in SCENARIOS["bounds"](SETTING)}
    assert rows["1.25 x mean + 4"] > rows["no index: least loaded"]


def test_a_warm_upgrade_finds_more_than_a_cold_one():
    """Successors that have what their predecessors kept, and are known for it, find more."""
    rows = [row.figures.hit_rate for row in SCENARIOS["upgrades"](SETTING)]
    assert rows[3] > rows[1]


def test_the_command_prints_a_table():
    """A table in Markdown, one line for each case."""
    options = ["simulate", "--scenario", "losses", "--replicas", "4", "--seconds", "20",
               "--conversations", "0.5"]  # fmt: skip
    shown = CliRunner().invoke(app, options)
    assert shown.exit_code == 0, shown.output
    assert shown.output.count(" % lost |") == 4
