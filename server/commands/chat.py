"""kvserve chat: a conversation in the terminal with a running server."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from server.commands.chat_options import (
    MaxTokens,
    MinP,
    Seed,
    Temperature,
    TopP,
    given,
    sampling_for,
)
from server.commands.terminal_chat import ChatError, TerminalChat, connect, first_model


def chat(  # noqa: PLR0913 - typer makes an option of each
    *,
    url: Annotated[
        str, typer.Option(envvar="KVSERVE_URL", help="The server.")
    ] = "http://127.0.0.1:8000",
    model: Annotated[
        str | None, typer.Option(help="The model to ask; the first that the server names if none.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="KVSERVE_API_KEY", help="Sent as a bearer token.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
) -> None:
    """Chat in the terminal with a running server; Ctrl-C stops an answer, Ctrl-D leaves."""
    chosen = given(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, min_p=min_p, seed=seed
    )
    with connect(url, api_key=api_key) as client:
        name, recommended = first_model(client)
        # Only a server that says what it recommends is told something better than nothing.
        options = chosen if recommended is None else sampling_for(recommended, chosen)
        conversation = TerminalChat(
            client, system=system, options={"model": model or name, **options}
        )
        if sys.stdin.isatty():
            print(f"{model or name} at {client.base_url}")
            print("Enter sends, Ctrl-C stops an answer, Ctrl-D leaves.")
        raise typer.Exit(_converse(conversation))


def _converse(conversation: TerminalChat) -> int:
    """Ask all that the user types; the exit code tells whether the last question was answered."""
    stderr = Console(stderr=True)
    code = 0
    while (question := _ask_user()) is not None:
        try:
            conversation.ask(question, lambda text: print(text, end="", flush=True))
            code = 0
        except ChatError as error:
            if not sys.stdin.isatty():
                raise
            code = 1
            stderr.print(str(error), style="red", markup=False, highlight=False)
        print()
    return code


def _ask_user() -> str | None:
    """The next line the user types that is not empty; None at the end."""
    try:
        while not (line := input("> " if sys.stdin.isatty() else "").strip()):
            pass
    except (EOFError, KeyboardInterrupt):
        print()
        return None
    return line
