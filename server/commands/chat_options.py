"""Options of commands that ask a model: how it samples, and what of that was given."""

from __future__ import annotations

from typing import Annotated

import typer

Temperature = Annotated[float | None, typer.Option(help="0 is greedy.")]
MaxTokens = Annotated[int | None, typer.Option(help="The longest answer, in tokens.")]
Seed = Annotated[int | None, typer.Option(help="Makes sampling repeatable.")]


def given(**options: object) -> dict[str, object]:
    """Return the options that have a value; the others are left to the server."""
    return {name: value for name, value in options.items() if value is not None}
