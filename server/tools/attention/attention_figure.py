"""The figure of an attention map: tokens on both axes, the darker the more weight."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from server.tools.plots import MUTED, drawing, title

_FEW = 48
"""Tokens up to which each is named."""
_NOTHING = 1e-4
"""Weights below this are drawn as white: hidden or as good as."""


def draw_attention(
    weights: Sequence[Sequence[float]],
    tokens: Sequence[str],
    *,
    heading: str,
    subtitle: str,
    path: Path,
) -> None:
    """Write the heat map.

    Colours follow the square root of the weight, as a few large weights, often of the first
    token, would otherwise leave all others white.

    Args:
        weights: Rows of queries; each sums to 1.
        tokens: What the tokens say.
        heading: Which layer and head.
        subtitle: The model.
        path: Where to; its ending chooses the format.
    """
    count = len(tokens)
    size = min(13.0, max(7.0, 2.5 + 0.30 * count))
    square = np.array(weights)
    future = np.triu(np.ones_like(square, dtype=bool), k=1)
    with drawing(path, size=(size + 1.2, size)) as (figure, (axes,)):
        axes.set_facecolor("#f1f3f5")
        shown = np.ma.masked_where(future, np.maximum(square, _NOTHING))
        image = axes.imshow(shown, cmap="GnBu", norm="linear", vmin=0, vmax=1)
        image.set_norm(_square_root(float(square.max())))
        bar = figure.colorbar(image, ax=axes, shrink=0.82, pad=0.02)
        bar.set_label("attention weight", fontsize=13)
        bar.outline.set_visible(False)
        names = [_name(token) for token in tokens]
        every = 1 if count <= _FEW else -(-count // _FEW)
        places = range(0, count, every)
        small = 12.5 if count <= 24 else 10.5 if count <= _FEW else 9
        axes.set_xticks(places, [names[i] for i in places], rotation=90, fontsize=small)
        axes.set_yticks(places, [names[i] for i in places], fontsize=small)
        axes.tick_params(length=0)
        axes.set_xlabel("is looked at")
        axes.set_ylabel("looks")
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.text(
            0.97,
            0.94,
            "the future:\nhidden by the causal mask",
            transform=axes.transAxes,
            ha="right",
            va="top",
            fontsize=13,
            color=MUTED,
        )
        title(figure, heading, "")
        figure.text(0.012, 0.005, subtitle, fontsize=11, color=MUTED)


def _square_root(largest: float) -> Any:  # noqa: ANN401 - matplotlib may not be there
    from matplotlib.colors import PowerNorm  # noqa: PLC0415 - an optional extra

    return PowerNorm(0.5, vmin=0, vmax=largest)


def _name(token: str) -> str:
    """A token as a tick shows it: spaces and line ends visible, short, and no formula."""
    text = token.replace(" ", "\N{OPEN BOX}").replace(
        "\n", "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}"
    )
    return text[:14].replace("$", r"\$") or "\N{EMPTY SET}"
