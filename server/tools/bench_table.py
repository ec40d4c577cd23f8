"""What the benchmark prints: a line for each task, and columns for each contender."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from server.tools.command_line import caption

Row = Mapping[str, Any]
"""A figure as JSON has it."""


def show_table(console: Console, rows: Sequence[Row], *, facts: dict[str, Any]) -> None:
    """Print the figures.

    Args:
        console: Where to.
        rows: Of all tasks and contenders; the first contender is what the others are held against.
        facts: About the machine and the model.
    """
    names = list(dict.fromkeys(row["contender"] for row in rows))
    where = f"{caption(facts)} ({facts['processor']}), {facts['kernels']}"
    bits = f"{facts['bits_per_weight']:.1f} bits a weight"
    table = Table(title=f"{where}, {bits}: tokens per second", header_style="bold")
    table.add_column("task", no_wrap=True)
    table.add_column("of limit", justify="right", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
        if name != names[0]:
            table.add_column("ratio", justify="right", no_wrap=True)
    for task in dict.fromkeys(map(_task, rows)):
        found = {row["contender"]: row for row in rows if _task(row) == task}
        table.add_row(*_cells([found[name] for name in names]))
    console.print(table)
    speed = f"Memory was read at {facts['bandwidth'] / 1e9:.1f} GB/s at best."
    ratio = f" Ratio: {names[0]} over the column before it." if len(names) > 1 else ""
    console.print(speed + ratio, highlight=False)


def _task(row: Row) -> tuple[object, ...]:
    return row["kind"], row["batch"], row["context"]


def _cells(rows: Sequence[Row]) -> list[str]:
    """One task's line."""
    ours = rows[0]
    share = ours["memory_share"]
    length = f"{ours['context']:,}"
    words = f"prompt of {length}"
    if ours["kind"] == "decode":
        words = f"decode, {ours['batch']} at {length}"
    cells = [words, "" if share is None else f"{100 * share:.0f} %"]
    for number, row in enumerate(rows):
        rate = row["tokens_per_second"]
        cells.append(f"{rate:,.0f} +- {50 * row['spread']:.0f} %")
        if number:
            cells.append(f"{ours['tokens_per_second'] / rate:.2f}x")
    return cells
