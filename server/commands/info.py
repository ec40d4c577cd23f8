"""kvserve info: what runs here, and why."""

from __future__ import annotations

from server.commands.options import with_options
from server.config import EngineConfig
from server.version import VERSION


@with_options(EngineConfig)
def info(config: EngineConfig) -> None:
    """Say what this installation, this machine and the model are."""
    from server.commands.model_summary import summarise  # noqa: PLC0415 - torch takes seconds to import

    for name, value in {"kvserve": VERSION, **summarise(config)}.items():
        print(f"{name + ':':22}{value}")
