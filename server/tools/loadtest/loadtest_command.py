"""kvserve loadtest: latencies, throughput and errors of a server under load."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from server.commands.options import with_options
from server.tools.command_line import FigurePath, JsonPath, check_folder, write_json
from server.tools.loadtest.load_display import LoadProgress, show_table
from server.tools.loadtest.load_figures import draw_load, draw_timeline
from server.tools.loadtest.loadtest import LoadTest
from server.tools.loadtest.loadtest_config import LoadTestConfig
from server.tools.plots import check_plottable

_INTERRUPTED = 130
"""The exit code of a command that Ctrl-C ended, as shells have it."""


@with_options(LoadTestConfig)
def loadtest(
    config: LoadTestConfig,
    *,
    figure: FigurePath = None,
    timeline: Annotated[
        Path | None, typer.Option(help="Write a figure of every request of the last level.")
    ] = None,
    json_path: JsonPath = None,
) -> None:
    """Load-test any server of the OpenAI API: latencies, throughput and errors.

    With --concurrency (closed loop) a latency counts from when the request was handed to an open
    connection, with --request-rate (open loop) from the time at which it was meant to be sent. A
    chunk of one token or more has arrived when its bytes have. Ctrl-C ends the test with what was
    measured until then. The JSON has the names that vLLM's benchmark writes.
    """
    for path in (figure, timeline):
        check_plottable(path)
    check_folder(json_path)
    extra = {"ignore_eos": True} if config.ignore_eos else {}
    test = LoadTest(
        url=config.url,
        loads=config.loads,
        workload=config.prompts,
        endpoint=config.endpoint,
        model=config.model,
        api_key=config.api_key,
        warm_up=config.warm_up,
        timeout=config.timeout,
        options={"temperature": 0, **extra},
        limits=config.limits,
        seed=config.load_seed,
    )
    with LoadProgress.bars(Console(stderr=True)) as bars:
        levels = asyncio.run(test.run(on_level=LoadProgress(bars, config.num_prompts).level))
    reports = [report for _, report in levels]
    show_table(Console(), [result.load for result, _ in levels], reports)
    write_json(json_path, reports[0] if len(reports) == 1 else {"runs": reports})
    subtitle = f"{reports[0]['model_id']}, {config.num_prompts} requests a level"
    if figure is not None:
        draw_load(reports, subtitle=subtitle, path=figure)
    if timeline is not None:
        draw_timeline(levels[-1][0], subtitle=subtitle, path=timeline)
    if any(report["unfinished"] for report in reports):
        print("kvserve: interrupted: only what had ended is counted", file=sys.stderr)
        raise typer.Exit(_INTERRUPTED)
    if any(report["failed"] for report in reports):
        raise typer.Exit(1)
