"""kvserve chat: a conversation in the terminal with a running server."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from server.commands.chat_options import MaxTokens, Seed, Temperature, given
from server.commands.terminal_chat import ChatError, TerminalChat, connect


def chat(
    *,
    url: Annotated[
        str, typer.Option(envvar="KVSERVE_URL", help="The server.")
    ] = "http://127.0.0.1:8000",
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
) -> None:
    """Chat in the terminal with a running server; Ctrl-C stops an answer, Ctrl-D leaves."""
    options = given(max_tokens=max_tokens, temperature=temperature, seed=seed)
    stderr = Console(stderr=True)
    with connect(url) as client:
        conversation = TerminalChat(client, system=system, options=options)
        while (question := _ask_user()) is not None:
            try:
                conversation.ask(question, lambda text: print(text, end="", flush=True))
            except ChatError as error:
                if not sys.stdin.isatty():
                    raise
                stderr.print(f"[red]{error}[/red]")
            print()


def _ask_user() -> str | None:
    """The next line the user types that is not empty; None at the end."""
    try:
        while not (line := input("> " if sys.stdin.isatty() else "").strip()):
            pass
    except (EOFError, KeyboardInterrupt):
        print()
        return None
    return line
