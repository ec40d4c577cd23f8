"""The figure of a comparison: step time, time so far and speed-up over the length, for a slide."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from server.engine.comparison import Comparison, Run
from server.tools.plots import CACHED, MUTED, THIRD, UNCACHED, drawing, plain_ticks, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMES = {True: "with the KV cache", False: "without (recompute all)"}
TIMES = "\N{MULTIPLICATION SIGN}"
_SMOOTHED = 9
"""Cached steps whose median is drawn: single ones jump with whatever else the machine does."""


def draw_comparison(
    comparison: Comparison, lengths: Sequence[int], *, subtitle: str, path: Path
) -> None:
    """Write the figure.

    Args:
        comparison: What was measured.
        lengths: Where the speed-up is named.
        subtitle: The model and the machine.
        path: Where to; its ending chooses the format.
    """
    with drawing(path, size=(17, 5.8), grid=(1, 3)) as (figure, (left, middle, right)):
        _draw_steps(left, comparison)
        _draw_totals(middle, comparison, max(lengths))
        _draw_speedup(right, comparison, lengths)
        title(figure, "What a KV cache gains", subtitle)


def _draw_steps(axes: Axes, comparison: Comparison) -> None:
    """Time of each step, and the growth that theory gives where the times follow it."""
    for run, colour in ((comparison.uncached, UNCACHED), (comparison.cached, CACHED)):
        lengths, seconds = _after_prompt(run)
        axes.plot(
            lengths,
            1000 * seconds,
            ".",
            color=colour,
            markersize=5 if run.use_cache else 8,
            alpha=0.22 if run.use_cache else 0.6,
            markeredgewidth=0,
        )
        growth = comparison.growth["cached" if run.use_cache else "uncached"]
        if growth is not None and growth.is_supported:
            every = np.linspace(lengths[0], lengths[-1], 200)
            drawn, label = growth(every), f"{_NAMES[run.use_cache]}, fitted"
        else:  # the times themselves: a curve that they do not follow would say what is not so
            every, drawn, label = lengths, seconds, _NAMES[run.use_cache]
        axes.plot(every, 1000 * np.maximum(drawn, 0), color=colour, label=label)
    axes.set_title("Time of one step")
    axes.set_ylabel("milliseconds per token")
    _limit(axes, comparison)
    axes.set_ylim(0, 1150 * max(comparison.uncached.seconds[1:]))
    axes.legend(loc="upper left")


def _draw_totals(axes: Axes, comparison: Comparison, longest: int) -> None:
    """Time of the whole generation so far."""
    for run, colour in ((comparison.uncached, UNCACHED), (comparison.cached, CACHED)):
        seconds = run.cumulative(longest)
        lengths = np.arange(longest - len(seconds) + 1, longest + 1)
        whole = np.array([run.is_whole(int(length)) for length in lengths])
        axes.fill_between(lengths, seconds, color=colour, alpha=0.10, linewidth=0)
        axes.plot(lengths[whole], seconds[whole], color=colour, label=_NAMES[run.use_cache])
        if not whole.all():
            axes.plot(lengths[~whole], seconds[~whole], color=colour, linestyle=(0, (4, 2)))
            axes.plot([], [], color=MUTED, linestyle=(0, (4, 2)), label="from sampled steps")
    axes.set_title("Time of the whole answer")
    axes.set_ylabel("seconds so far")
    _limit(axes, comparison)
    axes.legend(loc="upper left")


def _draw_speedup(axes: Axes, comparison: Comparison, lengths: Sequence[int]) -> None:
    """How many times faster the cache makes a whole generation and its last step."""
    places = np.arange(len(lengths))
    for offset, name, label, colour, side in (
        (-0.2, "total_speedup", "whole answer", CACHED, "right"),
        (0.2, "step_speedup", "last step", THIRD, "center"),
    ):
        heights = [float(str(comparison.row(length)[name])) for length in lengths]
        bars = axes.bar(places + offset, heights, width=0.36, color=colour, label=label)
        for bar, height in zip(bars, heights, strict=True):
            digits = 1 if height < 9.5 and len(lengths) < 5 else 0
            part = 1.0 if side == "right" else 0.5  # so that it stays clear of the other bar
            axes.annotate(
                f"{height:.{digits}f}{TIMES}",
                (bar.get_x() + part * bar.get_width(), height),
                xytext=(0, 4),
                textcoords="offset points",
                ha=side,
                fontsize=13 if len(lengths) < 6 else 11,
                fontweight="bold",
                color=colour,
            )
    axes.set_title("Times faster with the cache")
    axes.set_xlabel("tokens in the sequence")
    axes.grid(visible=False, axis="x")
    axes.set_ylim(0, axes.get_ylim()[1] * 1.12)
    plain_ticks(axes, "x", places.tolist(), [f"{length:,}" for length in lengths])
    axes.legend(loc="upper left")


def _limit(axes: Axes, comparison: Comparison) -> None:
    axes.set_xlabel("tokens in the sequence")
    axes.set_xlim(0, comparison.cached.lengths[-1] * 1.02)
    axes.set_ylim(0, None)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.4g}")


def _after_prompt(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Lengths and times without the first step, smoothed if there are many."""
    lengths, seconds = np.array(run.lengths[1:], float), np.array(run.seconds[1:])
    if run.use_cache and len(lengths) > 10 * _SMOOTHED:
        windows = np.lib.stride_tricks.sliding_window_view(seconds, _SMOOTHED)
        return lengths[_SMOOTHED // 2 : -(_SMOOTHED // 2)], np.median(windows, axis=1)
    return lengths, seconds
