"""The figure of four forms: a new token's time and the bytes kept, over the length of the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from server.tools.compare.form_step import GROWTHS, FormStep
from server.tools.plots import CACHED, MUTED, THIRD, UNCACHED, drawing, plain_ticks, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = dict(zip(GROWTHS, (UNCACHED, THIRD, CACHED, MUTED), strict=True))


def draw_forms(steps: Sequence[FormStep], *, subtitle: str, path: Path) -> None:
    """Write the figure.

    Args:
        steps: What was measured.
        subtitle: The layer and the machine.
        path: Where to; its ending chooses the format.
    """
    with drawing(path, size=(15, 6), grid=(1, 2)) as (figure, (left, right)):
        _draw(left, steps, lambda step: step.step_ms)
        left.set_title("Time of a new token")
        left.set_ylabel("milliseconds")
        _draw(right, [step for step in steps if step.num_bytes], lambda step: step.num_bytes / 1024)
        right.set_title("Kept for it")
        right.set_ylabel("KiB")
        left.legend(loc="upper left")
        title(figure, "What a new token costs", subtitle)


def _draw(axes: Axes, steps: Sequence[FormStep], value: Callable[[FormStep], float]) -> None:
    """A line for each form; recomputing keeps nothing, and has none on the right."""
    for form, growth in GROWTHS.items():
        mine = [step for step in steps if step.form == form]
        if mine:
            axes.plot(
                [step.length for step in mine],
                [value(step) for step in mine],
                "o-",
                color=_COLOURS[form],
                label=f"{form}, {growth}",
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    lengths = sorted({step.length for step in steps})
    plain_ticks(axes, "x", lengths, [f"{length:,}" for length in lengths])
    axes.set_xlabel("tokens of the text")
