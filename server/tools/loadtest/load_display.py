"""What a load test shows in the terminal: progress as it happens, a table at the end."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from server.tools.loadtest.load_generator import Load
from server.tools.loadtest.load_report import PERCENTILES, requests_needed
from server.tools.loadtest.stream_client import StreamRecord

_ROWS = (
    ("completed", "completed", "{:,}"),
    ("failed", "failed", "{:,}"),
    ("unfinished", "unfinished", "{:,}"),
    ("sent again", "sent_again", "{:,}"),
    ("requests/s", "request_throughput", "{:.2f}"),
    ("good requests/s", "request_goodput", "{:.2f}"),
    ("output tokens/s", "output_throughput", "{:.1f}"),
    ("all tokens/s", "total_token_throughput", "{:.1f}"),
    ("tokens a chunk", "tokens_per_chunk", "{:.2f}"),
    ("most at once", "max_concurrent_requests", "{}"),
    ("client CPU", "client_cpu_share", "{:.0%}"),
)
_IF_ANY = ("unfinished", "sent_again")
"""Rows that are left out when all of their values are zero."""
_METRICS = {
    "ttft": "time to first token",
    "tpot": "time per further token",
    "itl": "between chunks",
    "e2el": "end to end",
}
_STATISTICS = ("mean", "median", "p90", "p95", "p99")


class LoadProgress:
    """A bar for each level, with the figures so far.

    Args:
        progress: Where the bars are.
        num_requests: Requests of each level.
    """

    def __init__(self, progress: Progress, num_requests: int) -> None:
        self._progress = progress
        self._num_requests = num_requests

    @staticmethod
    def bars(console: Console) -> Progress:
        """An empty set of bars, to be entered as a context."""
        return Progress(
            TextColumn("{task.description:>16}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[figures]}"),
            console=console,
        )

    def level(self, load: Load) -> Callable[[StreamRecord], None]:
        """Begin a level; what is returned is told of each request as it is sent and as it ends."""
        task = self._progress.add_task(str(load), total=self._num_requests, figures="")
        under_way, failed, tokens = 0, 0, 0
        first_tokens: list[float] = []

        def show(record: StreamRecord) -> None:
            nonlocal under_way, failed, tokens
            if not record.ended:
                under_way += 1
            else:
                under_way -= 1
                failed += record.error is not None
                tokens += record.output_tokens
                if record.arrivals:
                    insort(first_tokens, record.ttft)  # sorting anew would hold up what is measured
            figures = f"{under_way} under way, {tokens:,} tokens"
            if first_tokens:
                middle = first_tokens[len(first_tokens) // 2]
                figures += f", median TTFT {1000 * middle:.0f} ms"
            figures += f", {failed} failed" if failed else ""
            self._progress.update(task, advance=bool(record.ended), figures=figures)

        return show


def show_table(
    console: Console, loads: Sequence[Load], reports: Sequence[Mapping[str, object]]
) -> None:
    """Print a column for each level, then warnings and what failed."""
    table = Table("", *(str(load) for load in loads), header_style="bold")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, key, form in _ROWS:
        values = [report[key] for report in reports]
        is_shown = any(values) if key in _IF_ANY else any(value is not None for value in values)
        if is_shown:
            table.add_row(name, *(_shown(value, form) for value in values))
    for metric, words in _METRICS.items():
        table.add_section()
        for statistic in _STATISTICS:
            values = [report[f"{statistic}_{metric}_ms"] for report in reports]
            if any(value is not None for value in values):
                name = f"{words}, {statistic}"
                table.add_row(name, *(_shown(value, "{:,.2f} ms") for value in values))
    console.print(table)
    _show_notes(console, loads, reports)


def _shown(value: object, form: str) -> str:
    """A value, or a dash where there is none."""
    return "-" if value is None else form.format(value)


def _show_notes(
    console: Console, loads: Sequence[Load], reports: Sequence[Mapping[str, object]]
) -> None:
    """Print what must be known to read the table: what is missing in it, warnings, failures."""
    fewest = min(int(str(report["completed"])) for report in reports)
    missing = [percent for percent in PERCENTILES if fewest < requests_needed(percent)]
    if missing:
        needs = ", ".join(f"p{percent} {requests_needed(percent)}" for percent in missing)
        console.print(f"Too few requests for some percentiles, which need: {needs}.")
    for load, report in zip(loads, reports, strict=True):
        if report["warning"]:
            console.print(f"[yellow]{load}: {report['warning']}[/yellow]")
        for kind, count in _failures(report).items():
            console.print(f"[red]{load}: {count} failed with {kind}[/red]")
    if reports[0]["max_concurrency"] is None:
        console.print(
            "Open loop: latencies count from the time each request was meant to be sent, so a "
            "stall is charged to all who would have met it."
        )


def _failures(report: Mapping[str, object]) -> Mapping[str, int]:
    kinds = report["errors_by_kind"]
    return kinds if isinstance(kinds, dict) else {}
