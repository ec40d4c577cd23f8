"""kvserve bench: tokens per second, beside the limit of the memory and beside another engine."""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from server.commands.options import with_options
from server.errors import ConfigurationError
from server.tools.bench.bench_config import BenchConfig
from server.tools.bench.bench_table import show_service, show_table
from server.tools.command_line import (
    JsonPath,
    RunFacts,
    check_folder,
    describe,
    spinner,
    write_json,
)

if TYPE_CHECKING:
    from server.engine.loaded_engine import LoadedEngine
    from server.tools.bench.bench import Contender, Task
    from server.tools.bench.bench_server import BenchServer


@with_options(BenchConfig)
def bench(config: BenchConfig, *, json_path: JsonPath = None) -> None:
    """Measure prompts, decoding for one request, and decoding for many.

    Decoding reads all weights and the keys and values of every request once a step, so memory
    limits it: "of limit" is the part of the measured read bandwidth that a step comes to. Rounds
    go through all tasks and contenders in turn; the first round is not counted. The bandwidth is
    read in every turn, and its best reading is the limit. llama.cpp is
    timed without choosing tokens, kvserve with all that serving needs. A server is started for
    --http and --service; it loads the model a second time.
    """
    from server.engine.loaded_engine import build_engine  # noqa: PLC0415 - torch takes seconds to import
    from server.tools.bench.bench import measure_all  # noqa: PLC0415 - and so do these
    from server.tools.bench.bench_memory import HOW, Bandwidth  # noqa: PLC0415
    from server.tools.bench.bench_service import ServiceBench, ServiceSizes  # noqa: PLC0415

    check_folder(json_path)
    fitted, tasks = _fit(config)
    with ExitStack() as stack:
        bar = stack.enter_context(spinner())
        line = bar.add_task("loading the model", total=None)
        loaded = build_engine(fitted)
        threads = loaded.info.num_threads
        bandwidth = Bandwidth(threads=threads)
        server = _server(stack, fitted)
        pairs = list(_pairs(stack, fitted, tasks=tasks, loaded=loaded, server=server))
        gc.collect()
        stack.callback(gc.unfreeze)
        gc.freeze()  # as the server does: a collection would come in the middle of something

        def show(doing: str, done: int, total: int) -> None:
            bar.update(line, description=doing, completed=done, total=total)

        figures = measure_all(
            pairs, repeat=config.repeat, progress=show, before_turn=bandwidth.read
        )
        bar.update(line, description="kvserve over HTTP, its service", total=None)
        service = None
        if config.service and server is not None:
            asked = ServiceBench(server, ServiceSizes())
            service = asked.measure(repeat=config.repeat).to_json()
    rows = [figure.to_json(steps=config.steps, bandwidth=bandwidth.best) for figure in figures]
    facts = {**describe(loaded), **_facts(loaded, fitted)}
    facts |= {"bandwidth": bandwidth.best, "bandwidth_from": HOW}
    facts |= {"bandwidth_readings": bandwidth.readings}
    console = Console()
    show_table(console, rows, facts=facts)
    if service is not None:
        show_service(console, service)
    write_json(json_path, {**facts, "figures": rows, "service": service})


def _server(stack: ExitStack, config: BenchConfig) -> BenchServer | None:
    """The engine in another process, if anything is measured through HTTP."""
    from server.tools.bench.bench_server import BenchServer  # noqa: PLC0415 - brings an HTTP client

    return stack.enter_context(BenchServer(config)) if config.http or config.service else None


def _pairs(
    stack: ExitStack,
    config: BenchConfig,
    *,
    tasks: list[Task],
    loaded: LoadedEngine,
    server: BenchServer | None,
) -> Iterator[tuple[Task, Contender]]:
    """All that are to be measured, started, task by task."""
    from server.engine.loaded_engine import build_engine  # noqa: PLC0415 - torch takes seconds to import
    from server.tools.bench.bench import EngineContender, Task  # noqa: PLC0415 - and so do these
    from server.tools.bench.bench_http import HttpContender  # noqa: PLC0415
    from server.tools.bench.peer.bench_peer import PeerContender  # noqa: PLC0415

    steps, threads = config.steps, loaded.info.num_threads
    contenders: list[Contender] = [EngineContender(loaded, steps=steps)]
    if config.http and server is not None:
        contenders.append(HttpContender(server, steps=steps, cost=loaded.info.cost))
    files = _peer_models(loaded, config)
    peers: list[Contender] = []
    for path in files:
        assert config.peer_python is not None
        peer = PeerContender(config.peer_python, path, threads=threads, steps=steps)
        peers.append(stack.enter_context(peer))
    for task in tasks:
        yield from ((task, contender) for contender in contenders + peers)
    alone = Task(kind="decode", context=config.context)
    for path, same in zip(files, peers, strict=True):
        if config.same_file:
            if alone not in tasks:
                yield alone, same
            other = build_engine(config.model_copy(update={"model": str(path)}))
            yield alone, EngineContender(other, steps=steps, name=f"kvserve {path.stem}")


def _peer_models(loaded: LoadedEngine, config: BenchConfig) -> list[Path]:
    """The files that llama.cpp is given.

    Raises:
        ConfigurationError: The options do not fit together, or a model is no GGUF file.
    """
    if config.peer_python is None:
        if config.peer_models or config.same_file:
            raise ConfigurationError("--peer-model and --same-file need --peer-python")
        return []
    chosen = config.peer_models or [Path(loaded.info.root)]
    for path in chosen:
        if not path.is_file():
            raise ConfigurationError(f"--peer-model: llama.cpp needs a GGUF file (got {path})")
    return chosen


def _fit(config: BenchConfig) -> tuple[BenchConfig, list[Task]]:
    """The tasks, and the engine's limits as far as these need them and nobody chose them.

    Raises:
        ConfigurationError: There is nothing to measure.
    """
    from server.tools.bench.bench import tasks_of  # noqa: PLC0415 - torch takes seconds to import
    from server.tools.bench.bench_service import ServiceSizes  # noqa: PLC0415 - and so does this

    tasks = tasks_of(prompts=config.prompts, batches=config.batches)
    if not tasks:
        raise ConfigurationError("--batch and --prompt are both empty: there is nothing to measure")
    longest = max(task.context for task in tasks)
    # Prompts that come as text have a token a word, and a few more.
    needed = longest + (longest // 8 if config.http else 0) + 2 * config.steps + 1
    seats = max(config.max_num_seqs, *(task.batch for task in tasks))
    if config.service:
        sizes = ServiceSizes()
        needed, seats = max(needed, sizes.long_words * 9 // 8), max(seats, sizes.streams + 1)
    length = config.max_model_len or needed
    return config.model_copy(update={"max_num_seqs": seats, "max_model_len": length}), tasks


def _facts(loaded: LoadedEngine, config: BenchConfig) -> RunFacts:
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
        "steps": config.steps,
        "repeat": config.repeat,
    }


def _processor() -> str:
    """Its name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
