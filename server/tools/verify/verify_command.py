"""kvserve verify: the one-answer contract, tried on this machine with this model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from rich.console import Console

from server.commands.options import with_options
from server.config import EngineConfig
from server.tools.command_line import JsonPath, check_folder, write_json

if TYPE_CHECKING:
    from server.tools.verify.verify import TrialResult

TORCH_TOLERANCE = 0.01
"""Of log-probabilities where torch computes; it promises no equal bits."""


@with_options(EngineConfig)
def verify(config: EngineConfig, *, json_path: JsonPath = None) -> None:
    """Check that a request's answer is the same alone and in any company, bit for bit.

    Short and long requests, greedy and seeded, run alone, then with 1, 7 and 31 others, from a
    warm cache, in other chunks, preempted, and on 1 and on all threads: tokens and
    log-probabilities must be equal. Ends with exit code 1 at the first difference. Where torch
    computes instead of the native kernels, rounding may differ with the company: the largest
    difference is reported, and only one above 0.01 is an error.
    """
    from server.tools.verify.verify import Verification  # noqa: PLC0415 - torch takes seconds to import

    check_folder(json_path)
    console = Console(highlight=False, soft_wrap=True)
    verification = Verification(config)
    info = verification.info
    exact = info.kernels != "torch"
    console.print(f"[bold]{info.model_name}[/bold], {info.dtype}, kernels: {info.kernels}")
    if not exact:
        console.print(
            "torch computes: answers may differ by rounding, and so part where two tokens are "
            "about equally likely."
        )
    results = []
    for result in verification.run():
        results.append(result)
        _show(console, result, exact=exact)
        if exact and result.differences:
            break
    failed = any(_fails(result, exact=exact) for result in results)
    facts = {"model": info.model_name, "dtype": info.dtype, "kernels": info.kernels}
    trials = [_facts(result) for result in results]
    write_json(json_path, {**facts, "equal": not failed, "trials": trials})
    _conclude(console, results, exact=exact)
    raise typer.Exit(int(failed))


def _fails(result: TrialResult, *, exact: bool) -> bool:
    """Whether a trial found what must not be."""
    return bool(result.differences) if exact else result.largest > TORCH_TOLERANCE


def _show(console: Console, result: TrialResult, *, exact: bool) -> None:
    """Print a line for a trial, as soon as it is done."""
    failed = _fails(result, exact=exact)
    mark = "[red]DIFFERENT[/red]" if failed else "[green]the same[/green]"
    if not exact and result.differences:
        mark = f"{result.largest:.1e} apart"
    note = f" ({result.note})" if result.note else ""
    verdict = "" if result.group == "alone" else f", {mark}"
    console.print(f"  {result.condition}{note}: {result.num_answers} answers{verdict}")


def _conclude(console: Console, results: list[TrialResult], *, exact: bool) -> None:
    """Say what it comes to, with the first difference in full."""
    first = next((d for result in results for d in result.differences), None)
    count = sum(result.num_answers for result in results if result.group != "alone")
    if first is None:
        console.print(f"[green]All {count} answers are the same to the last bit.[/green]")
    elif exact:
        console.print(f"The first difference: {first}", style="red", markup=False)
    else:
        largest = max(result.largest for result in results)
        console.print(
            f"Log-probabilities differ by at most {largest:.1e} before answers part; "
            f"up to {TORCH_TOLERANCE} is allowed with torch, and nothing with the native kernels."
        )


def _facts(result: TrialResult) -> dict[str, object]:
    """A trial for JSON."""
    return {
        "condition": result.condition,
        "note": result.note,
        "num_answers": result.num_answers,
        "num_differences": len(result.differences),
        "largest_difference": result.largest,
        "first_difference": str(result.differences[0]) if result.differences else None,
    }
