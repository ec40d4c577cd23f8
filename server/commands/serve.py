"""kvserve serve: a model over HTTP."""

from __future__ import annotations

import json
import logging
import sys

import typer

from server.api.handlers.access import log_to_stdout
from server.api.http_server import open_socket
from server.api.http_server import serve as run_server
from server.api.protocols import EngineClient
from server.commands.engine_loading import loading
from server.commands.options import with_options
from server.config import ServerConfig
from server.version import VERSION

_EXAMPLE = {"role": "user", "content": "What is the capital of France?"}


@with_options(ServerConfig)
def serve(config: ServerConfig) -> None:
    """Serve a model over HTTP until SIGTERM or Ctrl-C."""
    logging.basicConfig(
        level=config.log_level.upper(), format="%(levelname)-8s %(message)s", stream=sys.stderr
    )
    if config.access_log:
        log_to_stdout(with_probes=config.log_level == "debug")
    bound = open_socket(config.host, config.port)
    address = f"http://{config.host}:{bound.getsockname()[1]}"
    with loading(config) as engine:
        code = run_server(engine, config, bound, on_ready=lambda: _announce(engine, address))
    raise typer.Exit(code)


def _announce(engine: EngineClient, address: str) -> None:
    """Say where the server is and how to try it."""
    model = engine.info.model_name
    has_chat = engine.chat_template is not None
    path = "chat/completions" if has_chat else "completions"
    question = {"messages": [_EXAMPLE]} if has_chat else {"prompt": "Once upon a time"}
    body = {"model": model, **question}
    print(f"kvserve {VERSION} serves {model} on {address}. Try:", file=sys.stderr)
    print(f"  curl {address}/v1/{path} -d '{json.dumps(body)}'", file=sys.stderr)
