"""kvserve bench: tokens per second, beside the limit of the memory and beside another engine."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from server.cli_options import with_options
from server.config import EngineConfig
from server.errors import ConfigurationError
from server.tools.command_line import (
    Facts,
    JsonPath,
    caption,
    check_folder,
    describe,
    spinner,
    write_json,
)

if TYPE_CHECKING:
    from server.engine import LoadedEngine
    from server.tools.bench import Contender, Task

PeerModels = Annotated[
    list[Path] | None,
    typer.Option(help="GGUF files for llama.cpp; again for each. --model if none."),
]


@with_options(EngineConfig)
def bench(
    config: EngineConfig,
    *,
    context: Annotated[int, typer.Option(min=1, help="Tokens seen when decoding begins.")] = 128,
    batch: Annotated[str, typer.Option(help="Requests decoded at once.")] = "1,2,4,8,16,32",
    prompt: Annotated[str, typer.Option(help="Lengths of prompts; may be empty.")] = "512,4096",
    steps: Annotated[int, typer.Option(min=2, help="Decode steps of one measurement.")] = 64,
    repeat: Annotated[int, typer.Option(min=1, help="Measurements; the median counts.")] = 5,
    http: Annotated[bool, typer.Option("--http", help="Also through a server.")] = False,
    peer_python: Annotated[
        Path | None,
        typer.Option(help="Compare with the llama-cpp-python of this interpreter's environment."),
    ] = None,
    peer_model: PeerModels = None,
    json_path: JsonPath = None,
) -> None:
    """Measure prompts, decoding for one request, and decoding for many.

    Decoding reads all weights and the keys and values of every request once a step, so memory
    limits it: "of limit" is the part of the measured read bandwidth that a step comes to. Rounds
    go through all tasks and contenders in turn; the first round is not counted. llama.cpp is
    timed without choosing tokens, kvserve with all that serving needs.
    """
    from server.engine import build_engine  # noqa: PLC0415 - torch takes seconds to import
    from server.tools.bench import measure_all, tasks_of  # noqa: PLC0415
    from server.tools.bench_memory import HOW, read_bandwidth  # noqa: PLC0415

    check_folder(json_path)
    tasks = tasks_of(
        prompts=_numbers("--prompt", prompt), batches=_numbers("--batch", batch), context=context
    )
    fitted = _fit(config, tasks, steps=steps)
    with ExitStack() as stack:
        bar = stack.enter_context(spinner())
        line = bar.add_task("loading the model", total=None)
        loaded = build_engine(fitted)
        bandwidth = read_bandwidth(threads=loaded.info.num_threads)
        peers = _peer_models(loaded, peer_python, peer_model)
        contenders = stack.enter_context(
            _contenders(loaded, fitted, steps=steps, http=http, peers=peers, python=peer_python)
        )

        def show(doing: str, done: int, total: int) -> None:
            bar.update(line, description=doing, completed=done, total=total)

        figures = measure_all(tasks, contenders, repeat=repeat, progress=show)
        bandwidth = max(bandwidth, read_bandwidth(threads=loaded.info.num_threads))
    cost = loaded.info.cost
    rows: list[dict[str, Any]] = [
        figure.to_json(
            step_bytes=figure.task.step_bytes(cost, steps=steps)
            if figure.contender.startswith("kvserve")
            else None,
            bandwidth=bandwidth,
        )
        for figure in figures
    ]
    facts = {**describe(loaded), **_facts(loaded, config)}
    measured = {"bandwidth": bandwidth, "bandwidth_from": HOW, "steps": steps, "repeat": repeat}
    _show(Console(), rows, facts=facts, bandwidth=bandwidth)
    write_json(json_path, {**facts, **measured, "figures": rows})


@contextmanager
def _contenders(
    loaded: LoadedEngine,
    config: EngineConfig,
    *,
    steps: int,
    http: bool,
    peers: list[Path],
    python: Path | None,
) -> Iterator[list[Contender]]:
    """All that are to be measured, started."""
    from server.tools.bench import EngineContender  # noqa: PLC0415 - torch takes seconds to import
    from server.tools.bench_http import HttpContender  # noqa: PLC0415
    from server.tools.bench_peer import PeerContender  # noqa: PLC0415

    with ExitStack() as stack:
        found: list[Contender] = [EngineContender(loaded, steps=steps)]
        if http:
            found.append(stack.enter_context(HttpContender(config, steps=steps)))
        for path in peers:
            assert python is not None
            threads = loaded.info.num_threads
            peer = PeerContender(python, path, threads=threads, steps=steps)
            found.append(stack.enter_context(peer))
        yield found


def _peer_models(
    loaded: LoadedEngine, python: Path | None, models: list[Path] | None
) -> list[Path]:
    """The files that llama.cpp is given.

    Raises:
        ConfigurationError: The options do not fit together, or the model is no GGUF file.
    """
    if python is None:
        if models:
            raise ConfigurationError("--peer-model needs --peer-python")
        return []
    chosen = models or [Path(loaded.info.root)]
    wrong = [path for path in chosen if not path.is_file()]
    if wrong:
        raise ConfigurationError(f"llama.cpp needs a GGUF file, and {wrong[0]} is none")
    return chosen


def _fit(config: EngineConfig, tasks: list[Task], *, steps: int) -> EngineConfig:
    """The engine's limits, as far as the tasks need them and nobody chose them."""
    seats = max([config.max_num_seqs, *(task.batch for task in tasks)])
    # A prompt of random words has up to twice as many tokens when it comes through HTTP.
    length = max(2 * task.context + 3 * steps for task in tasks)
    length = config.max_model_len or length
    return config.model_copy(update={"max_num_seqs": seats, "max_model_len": length})


def _numbers(option: str, text: str) -> list[int]:
    """Whole numbers with commas between.

    Raises:
        ConfigurationError: One is none, or is 0.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigurationError(f"{option}: expected whole numbers above 0 (got {text})")
    return [int(part) for part in parts]


def _facts(loaded: LoadedEngine, config: EngineConfig) -> Facts:
    """What the figures depend on."""
    info = loaded.info
    return {
        "kvserve": version("kvserve"),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": platform.machine(),
        "processor": _processor(),
        "num_processors": os.cpu_count(),
        "kernels": info.kernels,
        "quantize": config.quantize,
        "weights_bytes": info.cost.weights_bytes,
        "bits_per_weight": 8 * info.cost.weights_bytes / info.num_parameters,
        "max_num_batched_tokens": config.max_num_batched_tokens,
    }


def _processor() -> str:
    """Its name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _show(
    console: Console, rows: list[dict[str, Any]], *, facts: Mapping[str, Any], bandwidth: float
) -> None:
    """Print a line for each task, and a pair of columns for each contender."""
    names = list(dict.fromkeys(row["contender"] for row in rows))
    where = f"{caption(facts)} ({facts['processor']}), {facts['kernels']}"
    bits = f"{facts['bits_per_weight']:.1f} bits a weight"
    table = Table(title=f"{where}, {bits}: tokens per second", header_style="bold")
    table.add_column("task", no_wrap=True)
    table.add_column("of limit", justify="right", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
        if name != names[0]:
            table.add_column("kvserve is", justify="right", no_wrap=True)
    tasks = dict.fromkeys((row["kind"], row["batch"], row["context"]) for row in rows)
    for task in tasks:
        found = {
            row["contender"]: row
            for row in rows
            if (row["kind"], row["batch"], row["context"]) == task
        }
        table.add_row(*_cells(task, [found[name] for name in names]))
    console.print(table)
    console.print(f"Memory is read at {bandwidth / 1e9:.1f} GB/s at best.", highlight=False)


def _cells(task: tuple[str, int, int], rows: list[dict[str, Any]]) -> list[str]:
    kind, batch, context = task
    words = f"prompt of {context:,}" if kind == "prompt" else f"decode, {batch} at {context:,}"
    share = rows[0]["memory_share"]
    cells = [words, "" if share is None else f"{100 * share:.0f} %"]
    for number, row in enumerate(rows):
        rate = row["tokens_per_second"]
        cells.append(f"{rate:,.0f} +- {50 * row['spread']:.0f} %")
        if number:
            cells.append(f"{rows[0]['tokens_per_second'] / rate:.2f}x")
    return cells
