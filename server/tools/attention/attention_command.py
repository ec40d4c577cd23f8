"""kvserve attention: what each token of a text attends to, as a heat map or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from server.commands.options import with_options
from server.config import EngineConfig
from server.errors import ConfigurationError
from server.tools.attention.attention_figure import draw_attention
from server.tools.command_line import (
    FigurePath,
    JsonPath,
    caption,
    check_folder,
    describe,
    load_for_one,
    spinner,
    write_json,
)
from server.tools.plots import check_plottable

_STRONGEST = 3
_TELLING_PART = 3
"""The layer shown by default is a third of the way up, as on the page.

Near the input layers look at neighbours, near the output at the first token: between is more.
"""


@with_options(EngineConfig)
def attention(
    config: EngineConfig,
    text: Annotated[str, typer.Argument(help="At most 256 tokens.")],
    *,
    layer: Annotated[
        int | None, typer.Option(help="From 0.", show_default="a third of the way up")
    ] = None,
    head: Annotated[int | None, typer.Option(help="From 0; the mean of all if none.")] = None,
    mean: Annotated[bool, typer.Option("--mean", help="The mean of all layers.")] = False,
    figure: FigurePath = None,
    json_path: JsonPath = None,
) -> None:
    """Show what each token of a text attends to, computed by the readable reference."""
    if mean and layer is not None:
        raise ConfigurationError(f"--mean is that of all and --layer is {layer}: give one of them")
    check_plottable(figure)
    check_folder(json_path)
    with spinner() as bar:
        bar.add_task("loading the model", total=None)
        loaded = load_for_one(config, max_model_len=16)
    if layer is None and not mean:
        layer = loaded.info.num_layers // _TELLING_PART
    token_ids = loaded.tokenizer.encode(text)
    try:
        weights = loaded.engine.attention_weights(token_ids, layer=layer, head=head)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    tokens = [loaded.tokenizer.token_text(token) for token in token_ids]
    facts = describe(loaded)
    found = {"layer": layer, "head": head, "token_ids": token_ids, "tokens": tokens}
    write_json(json_path, {**facts, **found, "weights": weights})
    if figure is not None:
        heading = f"Attention of {_which('layer', layer)}, {_which('head', head)}"
        draw_attention(weights, tokens, heading=heading, subtitle=caption(facts), path=figure)
    if figure is None and json_path is None:
        _show(tokens, weights)


def _which(kind: str, number: int | None) -> str:
    return f"all {kind}s (mean)" if number is None else f"{kind} {number}"


def _show(tokens: Sequence[str], weights: Sequence[Sequence[float]]) -> None:
    """Print for each token the earlier ones that weigh most."""
    table = Table("token", "attends most to", header_style="bold")
    for token, row in zip(tokens, weights, strict=True):
        ranked = sorted(range(len(row)), key=lambda key: -row[key])[:_STRONGEST]
        strongest = (f"{tokens[key]!r} {row[key]:.0%}" for key in ranked if row[key] > 0)
        table.add_row(repr(token), ", ".join(strongest))
    Console().print(table)
