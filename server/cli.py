"""The command line: serve, generate, chat, info, and the tools.

Every option of the model and the server can also be given as a variable KVSERVE_<OPTION>. What the
user got wrong is one line on stderr and a non-zero exit code; a traceback is a fault of ours.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from model.errors import ModelError
from server.access import log_to_stdout
from server.cli_options import with_options
from server.config import EngineConfig, ServerConfig
from server.deployment import open_socket
from server.deployment import serve as run_server
from server.errors import KvserveError
from server.input_processor import InputProcessor
from server.protocols import Engine
from server.schemas import ChatBody, CompletionBody, parse
from server.terminal_chat import ChatError, TerminalChat, connect
from server.tools.attention_command import attention
from server.tools.bench_command import bench
from server.tools.compare_command import compare
from server.tools.loadtest_command import loadtest
from server.tools.perplexity_command import perplexity
from server.tools.verify_command import verify
from server.version import VERSION

app = typer.Typer(
    name="kvserve",
    help="Serve a language model over the OpenAI API, or use one in the terminal.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_EXAMPLE = {"role": "user", "content": "What is the capital of France?"}
_stderr = Console(stderr=True)
_LOG_FORMAT = "%(levelname)-8s %(message)s"

Temperature = Annotated[float | None, typer.Option(help="0 is greedy.")]
MaxTokens = Annotated[int | None, typer.Option(help="The longest answer, in tokens.")]
Seed = Annotated[int | None, typer.Option(help="Makes sampling repeatable.")]


@app.command()
@with_options(ServerConfig)
def serve(config: ServerConfig) -> None:
    """Serve a model over HTTP until SIGTERM or Ctrl-C."""
    logging.basicConfig(level=config.log_level.upper(), format=_LOG_FORMAT, stream=sys.stderr)
    if config.access_log:
        log_to_stdout(with_probes=config.log_level == "debug")
    bound = open_socket(config.host, config.port)
    address = f"http://{config.host}:{bound.getsockname()[1]}"
    with _loading(config) as engine:
        code = run_server(engine, config, bound, on_ready=lambda: _announce(engine, address))
    raise typer.Exit(code)


@app.command()
@with_options(EngineConfig)
def generate(
    config: EngineConfig,
    prompt: Annotated[str, typer.Argument(help="The text to continue, or the question.")],
    *,
    chat: Annotated[
        bool, typer.Option("--chat", help="Ask through the model's chat template.")
    ] = False,
    max_tokens: MaxTokens = 128,
    temperature: Temperature = None,
    seed: Seed = None,
) -> None:
    """Continue a text in the terminal; no server needed."""
    logging.basicConfig(level=logging.WARNING, format=_LOG_FORMAT, stream=sys.stderr)
    options = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    body = {name: value for name, value in options.items() if value is not None}
    question: dict[str, object] = (
        {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
    )
    with _loading(config) as engine:
        asyncio.run(_generate(engine, {**body, **question}))


@app.command()
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
    options = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    given = {name: value for name, value in options.items() if value is not None}
    with connect(url) as client:
        conversation = TerminalChat(client, system=system, options=given)
        while (question := _ask_user()) is not None:
            try:
                conversation.ask(question, _show)
            except ChatError as error:
                if not sys.stdin.isatty():
                    raise
                _stderr.print(f"[red]{error}[/red]")
            print()


@app.command()
@with_options(EngineConfig)
def info(config: EngineConfig) -> None:
    """Say what this installation, this machine and the model are."""
    from server.model_summary import summarise  # noqa: PLC0415 - torch takes seconds to import

    for name, value in {"kvserve": VERSION, **summarise(config)}.items():
        print(f"{name + ':':22}{value}")


for tool in (compare, loadtest, attention, bench, verify, perplexity):
    app.command()(tool)


def main() -> None:
    """Run the command line; the user's faults are one line and exit code 1."""
    try:
        app()
    except (KvserveError, ModelError) as error:
        print(f"kvserve: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(1)


@contextmanager
def _loading(config: EngineConfig) -> Iterator[Engine]:
    """An engine that will load this model, with a progress bar, when it is started."""
    from server.async_engine import AsyncEngine  # noqa: PLC0415 - torch takes seconds to import
    from server.engine import build_engine  # noqa: PLC0415 - and chat and --help need none of it

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=_stderr, transient=True) as bar:
        task = bar.add_task("loading the model", total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)
            if done >= total:
                bar.stop()

        yield AsyncEngine(lambda: build_engine(config, progress=show))


async def _generate(engine: Engine, body: Mapping[str, object]) -> None:
    """Start the engine, run one request and print its text as it comes."""
    await engine.start()
    try:
        inputs = InputProcessor(
            engine.info, engine.tokenizer, engine.chat_template, grammars=engine.grammars
        )
        if "messages" in body:
            call = inputs.chat(parse(ChatBody, body))
        else:
            call = inputs.completion(parse(CompletionBody, body))
        async with aclosing(engine.generate(call.requests)) as outputs:
            async for output in outputs:
                _show(output.text)
                if output.error is not None:
                    raise KvserveError(output.error)
        print()
    finally:
        await engine.stop(1.0)


def _announce(engine: Engine, address: str) -> None:
    """Say where the server is and how to try it."""
    model = engine.info.model_name
    has_chat = engine.chat_template is not None
    path = "chat/completions" if has_chat else "completions"
    question = {"messages": [_EXAMPLE]} if has_chat else {"prompt": "Once upon a time"}
    body = {"model": model, **question}
    print(f"kvserve {VERSION} serves {model} on {address}. Try:", file=sys.stderr)
    print(f"  curl {address}/v1/{path} -d '{json.dumps(body)}'", file=sys.stderr)


def _show(text: str) -> None:
    print(text, end="", flush=True)


def _ask_user() -> str | None:
    """The next line the user types that is not empty; None at the end."""
    try:
        while not (line := input("> " if sys.stdin.isatty() else "").strip()):
            pass
    except (EOFError, KeyboardInterrupt):
        print()
        return None
    return line
