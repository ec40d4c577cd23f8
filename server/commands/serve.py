"""kvserve serve: a model over HTTP."""

from __future__ import annotations

import socket
import sys

import typer

from server.api.handlers.access import log_to_stdout
from server.api.http_server import open_socket, open_unix_socket
from server.api.http_server import serve as run_server
from server.api.protocols import EngineClient
from server.commands.engine_loading import loading
from server.commands.log_lines import for_this_terminal, log_to_stderr
from server.commands.options import with_options
from server.commands.start_lines import start_lines
from server.config import ServerConfig


@with_options(ServerConfig)
def serve(config: ServerConfig) -> None:
    """Serve a model over HTTP until SIGTERM or Ctrl-C."""
    config = for_this_terminal(config)
    log_to_stderr(config.log_level or "info")
    if config.access_log:
        log_to_stdout(with_probes=config.log_level == "debug")
    bound = open_unix_socket(config.uds) if config.uds else open_socket(config.host, config.port)
    address = _address(config, bound)
    with loading(config) as engine:
        code = run_server(engine, config, bound, on_ready=lambda: _announce(engine, address))
    raise typer.Exit(code)


def _address(config: ServerConfig, bound: socket.socket) -> str:
    """Where clients find the server; an address of IPv6 stands in brackets."""
    if config.uds is not None:
        return f"unix:{config.uds}"
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"http://{host}:{bound.getsockname()[1]}"


def _announce(engine: EngineClient, address: str) -> None:
    """Say what is served, where, and how to try it."""
    has_chat = engine.chat_template is not None
    for line in start_lines(engine.info, address=address, has_chat=has_chat):
        print(line, file=sys.stderr)
