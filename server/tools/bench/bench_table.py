"""What the benchmark prints: speed by task and contender, then file by file, then the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from server.tools.command_line import caption

Row = Mapping[str, Any]
"""A figure as JSON has it."""

_OURS, _PEER = "kvserve", "llama.cpp"
_ABOVE = (
    "! is above the limit: the memory was never read as fast in this run as it is when nothing "
    "disturbs, or the model stays in a cache."
)


def show_table(console: Console, rows: Sequence[Row], *, facts: dict[str, Any]) -> None:
    """Print the figures.

    Args:
        console: Where to.
        rows: Of all tasks and contenders; the first contender is what the others are held against.
        facts: About the machine and the model.
    """
    names = list(dict.fromkeys(row["contender"] for row in rows))
    files = [name for name in names if _peer_of(name) in names]
    names = [name for name in names if name not in files]
    where = f"{caption(facts)} ({facts['processor']}), {facts['kernels']}"
    bits = f"{facts['bits_per_weight']:.1f} bits a weight"
    table = _table(f"{where}, {bits}: tokens per second")
    for task in dict.fromkeys(_task(row) for row in rows if row["contender"] == names[0]):
        found = {row["contender"]: row for row in rows if _task(row) == task}
        table.add_section()
        for name in names:
            label = _words(found[name]) if name == names[0] else ""
            table.add_row(label, name, *_cells(found[name], ours=found[names[0]]))
    console.print(table)
    readings = facts["bandwidth_readings"]
    speed = f"Memory was read at {max(readings) / 1e9:.1f} GB/s at best"
    speed += f", {min(readings) / 1e9:.1f} at worst, in {len(readings)} turns."
    ratio = f" Ratio: {names[0]} over the others." if len(names) > 1 else ""
    console.print(speed + ratio, highlight=False)
    if any(row["above_limit"] for row in rows):
        console.print(_ABOVE, highlight=False)
    if files:
        console.print(_file_table(rows, files))


def show_service(console: Console, service: Mapping[str, Any]) -> None:
    """Print what a server is like to use.

    Args:
        console: Where to.
        service: ServiceFigures as JSON has them.
    """
    sizes, idle = service["sizes"], service["idle_share"]
    gap = f"of {sizes['streams']} streams beside a prompt of {sizes['long_words']:,}"
    table = Table(title="Through HTTP, on the same machine", header_style="bold")
    table.add_column("")
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_row("from the start to the first token", f"{service['seconds_to_first_token']:.2f} s")
    table.add_row("processor time while it waits", "?" if idle is None else f"{100 * idle:.1f} %")
    table.add_row(
        f"first token after {sizes['prefix_words']:,} cached, of the cold time",
        f"{100 * service['prefix_share']:.1f} %",
    )
    table.add_row(f"gaps {gap}, 99th percentile", f"{service['gap_ratio']:.1f} x usual")
    table.add_row("the longest of them", f"{service['longest_gap_ratio']:.1f} x usual")
    console.print(table)


def _table(title: str) -> Table:
    """One line for each task and contender, so that any number of them fits a terminal."""
    table = Table(title=title, header_style="bold")
    table.add_column("task", no_wrap=True)
    table.add_column("by")
    for name in ("measured", "of limit", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _file_table(rows: Sequence[Row], files: Sequence[str]) -> Table:
    """Each file that both engines decoded."""
    tasks = {_task(row): _words(row) for row in rows if row["contender"] in files}
    (task,) = tasks
    found = {row["contender"]: row for row in rows if _task(row) == task}
    table = _table(f"{tasks[task]}, the same file: tokens per second")
    table.columns[0].header = "file"
    for name in files:
        peer = found[_peer_of(name)]
        table.add_section()
        table.add_row(name.removeprefix(f"{_OURS} "), _OURS, *_cells(found[name], ours=found[name]))
        table.add_row("", _PEER, *_cells(peer, ours=found[name]))
    return table


def _peer_of(name: str) -> str:
    """What the other engine is called when it has the same file."""
    return _PEER + name.removeprefix(_OURS) if name.startswith(_OURS) else ""


def _task(row: Row) -> tuple[object, ...]:
    return row["kind"], row["batch"], row["context"]


def _words(row: Row) -> str:
    """The task in the first column."""
    length = f"{row['context']:,}"
    return (
        f"prompt of {length}" if row["kind"] == "prompt" else f"decode, {row['batch']} at {length}"
    )


def _cells(row: Row, *, ours: Row) -> list[str]:
    """What stands behind a contender's name; ours is held against the others."""
    rate, share = row["tokens_per_second"], row["memory_share"]
    return [
        f"{rate:,.0f} +- {50 * row['spread']:.0f} %",
        "" if share is None else f"{'! ' * row['above_limit']}{100 * share:.0f} %",
        "" if row is ours else f"{ours['tokens_per_second'] / rate:.2f}x",
    ]
