"""The command line: which commands there are, and what becomes of a user's mistake.

A command is imported when it is run, and only that one: what the others need would double the
time to its first word. What the user got wrong is one line on stderr and a non-zero exit code; a
traceback is a fault of ours.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from model.errors import ModelError
from server.errors import KvserveError
from server.version import VERSION

_COMMANDS = {
    "serve": ("server.commands.serve", "Serve a model over HTTP until SIGTERM or Ctrl-C."),
    "fleet": (
        "server.fleet.fleet_command",
        "Serve a model by replicas on Ray Serve until SIGTERM or Ctrl-C; SIGHUP replaces them.",
    ),
    "simulate": (
        "server.fleet.simulation.simulate_command",
        "Simulate a fleet of many replicas behind the real router, and print tables.",
    ),
    "generate": (
        "server.commands.generate",
        "Continue a text in the terminal; no server needed.",
    ),
    "chat": (
        "server.commands.chat",
        "Chat in the terminal with a running server; Ctrl-C stops an answer, Ctrl-D leaves.",
    ),
    "info": ("server.commands.info", "Say what this installation, this machine and the model are."),
    "compare": (
        "server.tools.compare.compare_command",
        "Measure what the KV cache gains: the same tokens with it and without it.",
    ),
    "loadtest": (
        "server.tools.loadtest.loadtest_command",
        "Load-test any server of the OpenAI API: latencies, throughput and errors.",
    ),
    "attention": (
        "server.tools.attention.attention_command",
        "Show what each token of a text attends to, computed by the readable reference.",
    ),
    "bench": (
        "server.tools.bench.bench_command",
        "Measure prompts, decoding for one request, and decoding for many.",
    ),
    "verify": (
        "server.tools.verify.verify_command",
        "Check that a request's answer is the same alone and in any company, bit for bit.",
    ),
    "perplexity": (
        "server.tools.perplexity.perplexity_command",
        "Measure perplexity over a text and, against --reference, what was lost.",
    ),
    "export": (
        "server.tools.export.export_command",
        "Write the model as ONNX, with its tokenizer and its chat template beside it.",
    ),
}
"""The module that holds a command under its own name, and the first line of its help."""

_COLLECTED_AFTER = 300_000
"""New objects before Python looks for garbage among them, instead of 700.

Importing and loading make a quarter of a million objects that all stay: looking through them
again and again took a fifth of the time to a server's first token.
"""


class _Commands(TyperGroup):
    """A group that knows its commands by name and imports the one that is run."""

    def resolve_command(  # type: ignore[override]  # typer's contexts are click's or its own
        self, ctx: typer.Context, args: list[str]
    ) -> tuple[str | None, Any, list[str]]:
        """Find the command that the arguments name."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else _imported(name), rest


def _imported(name: str) -> object:
    """Import a command and make it what typer runs."""
    module, _ = _COMMANDS[name]
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name)(getattr(import_module(module), name))
    return typer.main.get_command(alone)


def _show_version(*, wanted: bool) -> None:
    if wanted:
        print(f"kvserve {VERSION}")
        raise typer.Exit


def _options(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=lambda value: _show_version(wanted=value),
            help="Say which version this is.",
        ),
    ] = False,
) -> None:
    """What stands before a command."""


def _command_line() -> typer.Typer:
    """Plain help: a table in boxes cuts the names of options on a terminal of 80 columns."""
    app = typer.Typer(
        name="kvserve",
        help="Serve a language model over the OpenAI API, or use one in the terminal.",
        cls=_Commands,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for name, (_, summary) in _COMMANDS.items():
        app.command(name, help=summary, short_help=summary)(lambda: None)
    return app


app = _command_line()


def main() -> None:
    """Run the command line; the user's faults are one line and exit code 1."""
    gc.set_threshold(_COLLECTED_AFTER)
    if sys.argv[1:2] == ["serve"]:
        # Until the server has its own: nothing runs yet that would have to finish.
        signal.signal(signal.SIGTERM, lambda _signal, _frame: os._exit(0))
    try:
        app()
    except (KvserveError, ModelError) as error:
        print(f"kvserve: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:  # a full disk, a closed terminal, a file that went away
        _say_last(f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
    except (MemoryError, OverflowError) as error:
        _say_last(f"there is not enough memory ({error or type(error).__name__})")


def _say_last(line: str) -> None:
    """Say why the command ends, if anybody can still read it, and end."""
    with contextlib.suppress(OSError):
        print(f"kvserve: {line}", file=sys.stderr)
    os._exit(1)  # whatever could not be written would only fail again
