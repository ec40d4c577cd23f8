"""How every figure of the project looks, and how it is written.

Matplotlib is the optional extra `plots`: it is imported when the first figure is asked for, so the
tools work without it. Figures are for a slide: light, few colours, readable at half size.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from server.errors import ConfigurationError
from server.tools.command_line import check_folder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CACHED = "#0f766e"
UNCACHED = "#d9480f"
THIRD = "#4263eb"
MUTED = "#868e96"
FORMATS = (".png", ".svg", ".pdf")
_DPI = 100
_COLOURS = 96

_STYLE: dict[str, Any] = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "axes.edgecolor": "#adb5bd",
    "axes.labelcolor": "#343a40",
    "axes.titlecolor": "#212529",
    "axes.titlesize": 17,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 14,
    "axes.labelsize": 15,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e9ecef",
    "xtick.labelsize": 13.5,
    "ytick.labelsize": 13.5,
    "xtick.color": "#495057",
    "ytick.color": "#495057",
    "legend.fontsize": 14,
    "legend.frameon": False,
    "lines.linewidth": 2.8,
    "font.family": "sans-serif",
    "font.size": 14,
    "svg.hashsalt": "kvserve",
}


def check_plottable(path: Path | None) -> None:
    """Find out before a long measurement whether its figure can be written.

    Raises:
        ConfigurationError: Matplotlib is missing, or the path has another ending or no folder.
    """
    if path is None:
        return
    if find_spec("matplotlib") is None:
        raise ConfigurationError(
            "figures need matplotlib: pip install 'kvserve[plots]', or leave the figure out"
        )
    if path.suffix.lower() not in FORMATS:
        raise ConfigurationError(f"{path} must end in one of {', '.join(FORMATS)}")
    check_folder(path)


@contextmanager
def drawing(
    path: Path, *, size: tuple[float, float], grid: tuple[int, int] = (1, 1)
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure to draw on, in the project's style, which is written at the end.

    Args:
        path: Where to; its ending chooses the format.
        size: Width and height in inches.
        grid: Rows and columns of axes, which come in one list.
    """
    import matplotlib as mpl  # noqa: PLC0415 - an optional extra
    from matplotlib.figure import Figure  # noqa: PLC0415 - likewise

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(*grid, squeeze=False)
        yield figure, list(axes.flat)
        _write(figure, path)


def _write(figure: Figure, path: Path) -> None:
    """Write a figure; a PNG with a palette, which is a third of the size."""
    if path.suffix.lower() != ".png":
        figure.savefig(path)
        return
    from PIL import Image  # noqa: PLC0415 - comes with matplotlib

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=_DPI)
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(_COLOURS).save(path, optimize=True)


def title(figure: Figure, text: str, subtitle: str) -> None:
    """A heading at the left, and at the right what was measured where."""
    figure.suptitle(text, x=0.01, ha="left", fontsize=22, fontweight="bold", color="#212529")
    figure.text(0.99, 0.985, subtitle, ha="right", va="top", fontsize=13, color=MUTED)


def plain_ticks(axes: Axes, axis: str, at: Sequence[float], labels: Sequence[str]) -> None:
    """Name these positions and no others, also on a logarithmic axis."""
    from matplotlib.ticker import NullFormatter, NullLocator  # noqa: PLC0415 - an optional extra

    chosen = axes.xaxis if axis == "x" else axes.yaxis
    chosen.set_minor_locator(NullLocator())
    chosen.set_minor_formatter(NullFormatter())
    chosen.set_ticks(at, labels)
