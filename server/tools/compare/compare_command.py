"""kvserve compare: what the KV cache gains, as a table, as JSON and as a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from server.commands.options import with_options
from server.config import EngineConfig
from server.engine.comparison import Comparison, Growth, Run
from server.errors import ConfigurationError
from server.plural import counted
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
from server.tools.compare.compare_figure import draw_comparison
from server.tools.compare.form_step import FormStep
from server.tools.compare.forms_figure import draw_forms
from server.tools.plots import check_plottable

Rows = Sequence[Mapping[str, Any]]
_PROMPT = "Once upon a time, in a small town by the sea,"


@with_options(EngineConfig)
def compare(
    config: EngineConfig,
    *,
    prompt: Annotated[str, typer.Option(help="What the sequence begins with.")] = _PROMPT,
    max_length: Annotated[int, typer.Option(min=64, help="The longest sequence.")] = 1024,
    lengths: Annotated[
        str,
        typer.Option(help="Compare at these, such as 100,300.", show_default="64, 128, 256 ..."),
    ] = "",
    whole: Annotated[
        int, typer.Option(min=1, help="Run every step without the cache up to this length.")
    ] = 128,
    forms: Annotated[
        bool, typer.Option("--forms", help="Compare forms of attention instead, on one layer.")
    ] = False,
    figure: FigurePath = None,
    json_path: JsonPath = None,
) -> None:
    """Measure what the KV cache gains: the same tokens with it and without it.

    A step with the cache takes time that grows with the length, one without it with its square;
    so a whole answer grows with the square or with the cube. Beyond --whole only some steps are
    run without the cache: all that the table marks with a tilde is added up from straight lines
    between them.

    --forms measures what a new token costs as a text grows, in one layer of attention with the
    model's heads and random weights: recomputing everything, a full cache, a window, and the
    state of linear attention.
    """
    from server.tools.compare.compare import CacheComparison, ladder  # noqa: PLC0415 - torch takes seconds

    check_plottable(figure)
    check_folder(json_path)
    chosen = _numbers(lengths) or ladder(max_length)
    if forms:
        _compare_forms(config, chosen, figure=figure, json_path=json_path)
        return
    with spinner() as bar:
        task = bar.add_task("loading the model", total=None)
        loaded = load_for_one(config, max_model_len=max(chosen) + 1)

        def show(doing: str, done: int, total: int) -> None:
            bar.update(task, description=doing, completed=done, total=total)

        token_ids = loaded.tokenizer.encode(prompt)
        measured = CacheComparison(loaded, token_ids, progress=show).run(chosen, whole=whole)
    facts, answer = describe(loaded), measured.to_json(chosen)
    rows = [measured.row(length) for length in chosen]
    _show(Console(), measured, rows, caption(facts))
    write_json(json_path, {**facts, **answer})
    if figure is not None:
        draw_comparison(measured, chosen, subtitle=caption(facts), path=figure)


def _compare_forms(
    config: EngineConfig, lengths: Sequence[int], *, figure: Path | None, json_path: Path | None
) -> None:
    """Measure, print, and write what was asked for."""
    import torch  # noqa: PLC0415 - seconds to import

    from model.formats.loader import open_checkpoint, resolve_model  # noqa: PLC0415 - likewise
    from server.engine.planning.resources import cpu_count  # noqa: PLC0415 - likewise
    from server.tools.compare.forms import FormsComparison, forms_to_json  # noqa: PLC0415 - likewise

    model = open_checkpoint(resolve_model(config.model)).config
    threads = config.threads or cpu_count()
    torch.set_num_threads(threads)
    with spinner() as bar:
        task = bar.add_task("one step at each length", total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        comparison = FormsComparison(model.num_heads, model.head_dim, progress=show)
        steps = comparison.run(lengths)
    layer = f"one layer of {model.num_heads} heads of {model.head_dim}"
    where = f"{layer}, {threads} CPU thread{'s' if threads != 1 else ''}"
    console = Console()
    console.print(f"\n[bold]What a new token costs[/bold], {where}\n", highlight=False)
    console.print(_forms_table(steps))
    sizes = {"num_heads": model.num_heads, "head_dim": model.head_dim, "num_threads": threads}
    write_json(json_path, {**sizes, **forms_to_json(steps)})
    if figure is not None:
        draw_forms(steps, subtitle=where, path=figure)


def _forms_table(steps: Sequence[FormStep]) -> Table:
    """A row for each length: the time of each form and what it keeps."""
    forms = list(dict.fromkeys(step.form for step in steps))
    table = _table("tokens", *(heading for form in forms for heading in (form, "keeps")))
    for length in dict.fromkeys(step.length for step in steps):
        row = [step for step in steps if step.length == length]
        cells = [(f"{s.step_ms:,.3f} ms", f"{s.num_bytes / 1024:,.0f} KiB") for s in row]
        table.add_row(f"{length:,}", *(cell for pair in cells for cell in pair))
    return table


def _numbers(text: str) -> list[int]:
    """Lengths from a list with commas, in order.

    Raises:
        ConfigurationError: One is no whole number, or too small to compare anything.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) > 1 for part in parts):
        raise ConfigurationError(f"--lengths: expected whole numbers above 1 (got {text})")
    return sorted(map(int, set(parts)))


def _show(console: Console, measured: Comparison, rows: Rows, where: str) -> None:
    """Print the times, the work behind them, and in words what they mean."""
    console.print(f"\n[bold]What the KV cache gains[/bold], {where}\n", highlight=False)
    times = _table("tokens", *_pair("one step"), "faster", *_pair("answer"), "faster")
    work = _table("tokens", "cache\nheld", *_pair("GFLOP a step"), *_pair("GB moved"))
    for row in rows:
        times.add_row(*_times(row))
        work.add_row(*_work(row))
    console.print(times)
    console.print("What a step must compute and move at least, from the configuration:")
    console.print(work)
    _show_growth(console, measured)
    different = measured.first_difference
    count = len(measured.uncached.lengths)
    if different is None:
        console.print(f"[green]All {count} tokens chosen without the cache are the same.[/green]")
    else:
        console.print(f"[red]The tokens differ from the step of {different} tokens on.[/red]")


def _pair(what: str) -> tuple[str, str]:
    """Headings of the two columns of a figure."""
    return f"{what}\nwith", f"{what}\nwithout"


def _table(*headings: str) -> Table:
    table = Table(header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _times(row: Mapping[str, Any]) -> Sequence[str]:
    cached, uncached = row["cached"], row["uncached"]
    about = "~" if uncached["total_is_estimate"] else ""
    return (
        f"{row['length']:,}",
        f"{cached['step_ms']:,.1f} ms",
        f"{uncached['step_ms']:,.1f} ms",
        f"{row['step_speedup']:.1f}x",
        f"{cached['total_ms'] / 1000:,.2f} s",
        f"{about}{uncached['total_ms'] / 1000:,.2f} s",
        f"{about}{row['total_speedup']:.1f}x",
    )


def _work(row: Mapping[str, Any]) -> Sequence[str]:
    sides = row["cached"], row["uncached"]
    return (
        f"{row['length']:,}",
        f"{row['cache_bytes'] / 2**20:.2f} MiB",
        *(f"{side['step_flops'] / 1e9:,.2f}" for side in sides),
        *(f"{side['step_bytes'] / 1e9:,.3f}" for side in sides),
    )


def _show_growth(console: Console, measured: Comparison) -> None:
    """Print how step times grow, where they show what theory says, and else that they do not."""
    for name, words in (("cached", "with the cache"), ("uncached", "without it")):
        run = measured.cached if name == "cached" else measured.uncached
        growth = measured.growth[name]
        console.print(f"One step {words}: {_growth_words(run, growth)}", highlight=False)


def _growth_words(run: Run, growth: Growth | None) -> str:
    if growth is None:
        return f"{counted(len(run.lengths) - 1, 'step')} after the prompt are too few for a fit."
    power = f"n^{growth.degree}" if growth.degree > 1 else "n"
    if not growth.is_supported:
        return (
            f"in theory it grows with {power}, but from {run.lengths[1]:,} to "
            f"{run.lengths[-1]:,} tokens these times do not show it (R^2 {growth.r_squared:.2f}); "
            "measure longer sequences."
        )
    terms = [f"{1000 * growth.coefficients[0]:.2f} ms"]
    for exponent, coefficient in enumerate(growth.coefficients[1:], start=1):
        unit = "us x n" if exponent == 1 else "ns x n^2"
        terms.append(f"{coefficient * 10 ** (3 + 3 * exponent):.3f} {unit}")
    return (
        f"{' + '.join(terms)} (R^2 {growth.r_squared:.3f}); "
        f"the whole answer grows with n^{growth.degree + 1}."
    )
