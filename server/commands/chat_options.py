"""Options of commands that ask a model: how it samples, and what is taken where nothing is said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

SENSIBLE_SAMPLING: Mapping[str, float] = {"temperature": 0.7, "top_p": 0.95, "min_p": 0.05}
"""For a model whose checkpoint recommends nothing.

At the API's own defaults, which are OpenAI's, small models ramble; the commands and the page are
for people who look at a model, so they take these.
"""

_DEFAULT = "the checkpoint's, else {}"
Temperature = Annotated[
    float | None,
    typer.Option(help="0 is greedy.", show_default=_DEFAULT.format(0.7)),
]
TopP = Annotated[
    float | None,
    typer.Option(
        help="Draw from the likeliest tokens that add up to this.",
        show_default=_DEFAULT.format(0.95),
    ),
]
MinP = Annotated[
    float | None,
    typer.Option(
        help="Leave out tokens less likely than this part of the likeliest.",
        show_default=_DEFAULT.format(0.05),
    ),
]
MaxTokens = Annotated[int | None, typer.Option(help="The longest answer, in tokens.")]
Seed = Annotated[int | None, typer.Option(help="Makes sampling repeatable.")]


def given(**options: object) -> dict[str, object]:
    """Return the options that have a value; the others are left to the server."""
    return {name: value for name, value in options.items() if value is not None}


def sampling_for(
    recommended: Mapping[str, object], chosen: Mapping[str, object]
) -> dict[str, object]:
    """How to sample: as chosen, else as the checkpoint recommends, else sensibly.

    Args:
        recommended: The checkpoint's own defaults, which the server fills in by itself.
        chosen: What the user gave.
    """
    return {**({} if recommended else SENSIBLE_SAMPLING), **chosen}
