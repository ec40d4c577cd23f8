"""kvserve simulate: what a fleet of any size would do, without one."""

from __future__ import annotations

from server.commands.options import with_options
from server.fleet.simulation.replica_model import ReplicaModel
from server.fleet.simulation.scenarios import SCENARIOS, Row, Setting
from server.fleet.simulation.simulation_config import SimulationConfig

_HEAD = "| | requests | blocks cached | first token p50 | p99 | went on elsewhere | |"
_RULE = "|---|---|---|---|---|---|---|"


@with_options(SimulationConfig)
def simulate(config: SimulationConfig) -> None:
    """Simulate a fleet of many replicas behind the real router, and print tables."""
    model = ReplicaModel.fitted(
        prefill_rate=config.prefill_rate,
        alone=config.alone_rate,
        crowd=config.crowd_rate,
        rows=config.crowd,
    )
    setting = Setting(
        model=model,
        num_replicas=config.replicas,
        conversations_per_replica=config.conversations,
        seconds=config.seconds,
    )
    for name, scenario in SCENARIOS.items():
        if config.scenario in ("all", name):
            print(f"{scenario.__doc__}\n\n{_HEAD}\n{_RULE}")
            for row in scenario(setting):
                print(_line(row), flush=True)
            print()


def _line(row: Row) -> str:
    figures = row.figures
    cells = (
        row.varied,
        f"{figures.num_requests}",
        f"{figures.hit_rate:.1%}",
        f"{figures.first_token_p50:.2f} s",
        f"{figures.first_token_p99:.2f} s",
        f"{figures.num_moves}",
        row.remark,
    )
    return f"| {' | '.join(cells)} |"
