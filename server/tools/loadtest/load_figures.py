"""Figures of a load test: latency against load, and the timeline of every request."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from server.tools.loadtest.load_generator import LoadResult
from server.tools.loadtest.load_report import PERCENTILES
from server.tools.plots import CACHED, MUTED, THIRD, UNCACHED, drawing, plain_ticks, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Reports = Sequence[Mapping[str, object]]
_FAILED = "#c92a2a"
_WAITING = "#ffd8a8"
_TALLEST = 20.0
"""Inches that a timeline grows to at most, however many requests it has."""


def draw_load(reports: Reports, *, subtitle: str, path: Path) -> None:
    """Write latencies and throughput over the levels of load.

    Args:
        reports: One for each level, as `load_report.report` makes them.
        subtitle: The server and the workload.
        path: Where to; its ending chooses the format.
    """
    open_loop = reports[0]["max_concurrency"] is None
    name = "request_rate" if open_loop else "max_concurrency"
    levels = [float(str(report[name])) for report in reports]
    label = "requests per second, open loop" if open_loop else "requests at once, closed loop"
    with drawing(path, size=(17, 5.8), grid=(1, 3)) as (figure, (left, middle, right)):
        _draw_percentiles(left, levels, reports, metric="ttft", colour=UNCACHED)
        left.set_title("Time to the first token")
        left.set_ylabel("milliseconds")
        _draw_percentiles(middle, levels, reports, metric="tpot", colour=THIRD)
        middle.set_title("Time for each further token")
        middle.set_ylabel("milliseconds")
        _draw_throughput(right, levels, reports)
        for axes in (left, middle, right):
            _scale(axes, levels)
            axes.set_xlabel(label)
        title(figure, "Latency against load", subtitle)


def draw_timeline(result: LoadResult, *, subtitle: str, path: Path) -> None:
    """Write a bar for each request: waiting for its first token, then receiving.

    Args:
        result: One level of load.
        subtitle: The server and the workload.
        path: Where to; its ending chooses the format.
    """
    records = sorted(result.records, key=lambda record: record.start)
    height = min(_TALLEST, 2.6 + 0.16 * len(records))
    with drawing(path, size=(14, height)) as (figure, (axes,)):
        for row, record in enumerate(records):
            start = record.start - result.started
            first = (record.arrivals[0] if record.arrivals else record.ended) - result.started
            last = (record.arrivals[-1] if record.arrivals else record.ended) - result.started
            failed = record.error is not None
            axes.barh(row, first - start, left=start, height=0.8, color=_WAITING)
            axes.barh(
                row, last - first, left=first, height=0.8, color=_FAILED if failed else CACHED
            )
            if failed:
                axes.plot(record.ended - result.started, row, "x", color=_FAILED, markersize=7)
        _legend(axes, failed=any(record.error for record in records))
        axes.set_xlabel("seconds since the start")
        axes.set_ylabel("requests, in order of sending")
        axes.set_ylim(len(records) - 0.4, -0.6)
        axes.set_xlim(0, None)
        axes.grid(visible=False, axis="y")
        axes.locator_params(axis="y", integer=True)
        title(figure, f"Every request at {result.load}", subtitle)


def _legend(axes: Axes, *, failed: bool) -> None:
    axes.barh(0, 0, color=_WAITING, label="waiting for the first token")
    axes.barh(0, 0, color=CACHED, label="receiving tokens")
    if failed:
        axes.plot([], [], "x", color=_FAILED, label="failed")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0.2)


def _draw_percentiles(
    axes: Axes, levels: list[float], reports: Reports, *, metric: str, colour: str
) -> None:
    """Median, and the furthest percentile for which every level has enough requests."""
    middle = _times(reports, f"median_{metric}_ms")
    for percent in sorted(PERCENTILES, reverse=True):
        high = _times(reports, f"p{percent}_{metric}_ms")
        if not np.isnan(high).any():
            axes.fill_between(levels, middle, high, color=colour, alpha=0.12, linewidth=0)
            name = f"p{percent}"
            axes.plot(levels, high, "o--", color=colour, linewidth=1.8, markersize=6, label=name)
            break
    axes.plot(levels, middle, "o-", color=colour, markersize=8, label="median")
    axes.set_ylim(0, None)
    axes.legend(loc="best")


def _times(reports: Reports, key: str) -> np.ndarray:
    """A figure of every level; not a number where it was not measured."""
    return np.array([math.nan if report[key] is None else report[key] for report in reports], float)


def _draw_throughput(axes: Axes, levels: list[float], reports: Reports) -> None:
    """Tokens per second of all requests together, and failures if there were any."""
    tokens = [float(str(report["output_throughput"])) for report in reports]
    axes.plot(levels, tokens, "o-", color=CACHED, markersize=8)
    for level, report, height in zip(levels, reports, tokens, strict=True):
        if report["failed"]:
            axes.annotate(
                f"{report['failed']} failed",
                (level, height),
                xytext=(0, 9),
                textcoords="offset points",
                ha="center",
                fontsize=12,
                color=_FAILED,
            )
    axes.set_title("Throughput")
    axes.set_ylabel("output tokens per second")
    axes.set_ylim(0, None)


def _scale(axes: Axes, levels: list[float]) -> None:
    """A logarithmic axis where the levels double, named at the levels."""
    if len(levels) > 2 and levels[0] > 0 and levels[-1] / levels[0] >= 8:
        axes.set_xscale("log")
    plain_ticks(axes, "x", levels, [f"{level:g}" for level in levels])
    axes.yaxis.set_major_formatter("{x:,.4g}")
    if len(levels) == 1:
        axes.axvline(levels[0], color=MUTED, linewidth=0.5)
