"""What the commands of the tools share: options, the loaded engine, and where answers go."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from server.config import EngineConfig
from server.errors import ConfigurationError
from server.plural import counted

if TYPE_CHECKING:
    from server.engine.loaded_engine import LoadedEngine

RunFacts = dict[str, object]
JsonPath = Annotated[Path | None, typer.Option("--json", help="Write all that was found as JSON.")]
FigurePath = Annotated[
    Path | None, typer.Option("--figure", help="Write a figure: .png, .svg or .pdf.")
]


def spinner() -> Progress:
    """One line on stderr that says what is being done and for how long; gone at the end."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def load_for_one(config: EngineConfig, *, max_model_len: int) -> LoadedEngine:
    """An engine for one request at a time, with a cache of no more than that needs."""
    from server.engine.loaded_engine import build_engine  # noqa: PLC0415 - torch takes seconds to import

    length = config.max_model_len or max_model_len
    return build_engine(config.model_copy(update={"max_num_seqs": 1, "max_model_len": length}))


def describe(loaded: LoadedEngine) -> RunFacts:
    """What a measurement was made with, for JSON."""
    info = loaded.info
    return {
        "model": info.model_name,
        "dtype": info.dtype,
        "device": info.device,
        "num_threads": info.num_threads,
    }


def caption(facts: RunFacts) -> str:
    """The same for people."""
    where = counted(int(str(facts["num_threads"])), "CPU thread")
    return f"{facts['model']}, {where if facts['device'] == 'cpu' else facts['device']}"


def check_folder(path: Path | None) -> None:
    """Find out early whether a file can be written.

    Raises:
        ConfigurationError: Its folder does not exist.
    """
    if path is not None and not path.absolute().parent.is_dir():
        raise ConfigurationError(f"there is no folder {path.absolute().parent}")


def write_json(path: Path | None, answer: Mapping[str, object]) -> None:
    """Write an answer, if a path was given."""
    if path is not None:
        path.write_text(json.dumps(answer, indent=1, allow_nan=False) + "\n", encoding="utf-8")
