"""kvserve perplexity: how well a model reads a text, and what rounding its weights costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from server.commands.options import with_options
from server.config import EngineConfig
from server.errors import ConfigurationError
from server.tools.command_line import (
    JsonPath,
    caption,
    check_folder,
    describe,
    spinner,
    write_json,
)

if TYPE_CHECKING:
    from server.engine.loaded_engine import LoadedEngine

LONGEST_WINDOW = 2048
"""Of a window that was not asked for: enough context, and quick."""


@with_options(EngineConfig)
def perplexity(
    config: EngineConfig,
    *,
    text: Annotated[Path, typer.Option(help="A file of text, UTF-8.")],
    reference: Annotated[
        Literal["float32", "bfloat16"] | None,
        typer.Option(help="Compare with the same file, its weights unpacked to this."),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(min=2, help="Tokens read at once.", show_default="the context, up to 2048"),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(min=1, help="From one window to the next.", show_default="half the window"),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=2, help="Read no more of the text than this.")
    ] = None,
    json_path: JsonPath = None,
) -> None:
    """Measure perplexity over a text and, against --reference, what was lost.

    The text is read in windows that overlap: each token is scored once, and all but those of the
    first window have at least the window less the stride before them. KL is the mean divergence
    of the next token's distribution from the reference's, over the whole vocabulary, in nats.
    """
    from server.tools.perplexity.perplexity import PerplexityMeter  # noqa: PLC0415 - torch takes seconds

    check_folder(json_path)
    content = _read(text)
    with spinner() as bar:
        task = bar.add_task("loading the model", total=None)
        loaded, other = _load(config, window=window, reference=reference)
        size = window or min(loaded.info.max_model_len, LONGEST_WINDOW)
        token_ids = loaded.tokenizer.encode(content, add_special_tokens=False)[:max_tokens]
        step = stride or max(1, size // 2)
        meter = PerplexityMeter(loaded, reference=other, window=size, stride=step)

        def show(done: int, total: int) -> None:
            bar.update(task, description="reading", completed=done, total=total)

        found = meter.measure(token_ids, progress=show).to_json()
    facts = {**describe(loaded), "quantize": config.quantize, "kernels": loaded.info.kernels}
    _show(Console(), found, where=caption(facts), reference=reference)
    sizes = {"window": size, "stride": step, "reference_dtype": reference}
    write_json(json_path, {**facts, **sizes, **found})


def _load(
    config: EngineConfig, *, window: int | None, reference: str | None
) -> tuple[LoadedEngine, LoadedEngine | None]:
    """The engine, and the one it is compared with; each has a cache for one window."""
    from server.engine.loaded_engine import build_engine  # noqa: PLC0415 - torch takes seconds to import

    length = config.max_model_len or window
    one = config.model_copy(update={"max_num_seqs": 1, "max_model_len": length})
    loaded = build_engine(one)
    if reference is None:
        return loaded, None
    exact = {"dtype": reference, "quantize": None, "max_model_len": loaded.info.max_model_len}
    return loaded, build_engine(one.model_copy(update=exact))


def _read(path: Path) -> str:
    """The text.

    Raises:
        ConfigurationError: It cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--text: cannot read {path}: {error}") from error


def _show(console: Console, found: Mapping[str, Any], *, where: str, reference: str | None) -> None:
    """Print the figures, one a line."""
    table = Table(title=where, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_row("tokens scored", f"{found['num_tokens']:,}")
    table.add_row("perplexity", _with_error(found))
    if reference is not None:
        table.add_row(f"perplexity of {reference}", _with_error(found["reference"]))
        table.add_row("mean KL divergence", f"{found['kl_mean']:.5f} +- {found['kl_error']:.5f}")
        table.add_row("KL, 99th percentile", f"{found['kl_99th_percentile']:.4f}")
        table.add_row("KL, largest", f"{found['kl_max']:.4f}")
        table.add_row("same likeliest token", f"{100 * found['same_top_token']:.2f} %")
    console.print(table)


def _with_error(figures: Mapping[str, float]) -> str:
    return f"{figures['perplexity']:.3f} +- {figures['perplexity_error']:.3f}"
