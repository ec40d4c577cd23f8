"""kvserve fleet: a model over HTTP, by many replicas."""

from __future__ import annotations

import asyncio
import signal
import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from server.api.handlers.access import log_to_stdout
from server.api.http_server import DrainingServer, open_socket
from server.commands.log_lines import for_this_terminal, log_to_stderr
from server.commands.options import with_options
from server.errors import ConfigurationError
from server.fleet.fleet_config import FleetConfig
from server.fleet.fleet_front import front_application
from server.fleet.fleet_service import FleetService
from server.fleet.serve_file import serve_file
from server.version import VERSION

_PrintConfig = Annotated[
    bool,
    typer.Option(
        "--print-config",
        help="Print a file for `serve deploy` on a cluster, and end.",
    ),
]


@with_options(FleetConfig)
def fleet(config: FleetConfig, *, print_config: _PrintConfig = False) -> None:
    """Serve a model by replicas on Ray Serve until SIGTERM or Ctrl-C; SIGHUP replaces them."""
    if print_config:
        print(serve_file(config), end="")
        return
    if find_spec("ray") is None:
        raise ConfigurationError("a fleet needs Ray: pip install 'kvserve[fleet]'.")
    config = for_this_terminal(config)
    log_to_stderr(config.log_level or "info")
    if config.access_log:
        log_to_stdout(with_probes=config.log_level == "debug")
    bound = open_socket(config.host, config.port)
    service = FleetService(config)
    address = f"http://{config.host}:{bound.getsockname()[1]}"
    DrainingServer(
        front_application(service.front, config),
        service,
        config,
        on_ready=lambda: _announce(service, config, address),
    ).run(sockets=[bound])


def _announce(service: FleetService, config: FleetConfig, address: str) -> None:
    """Say where the fleet is; from now on SIGHUP replaces the replicas."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, service.upgrade)
    print(f"kvserve {VERSION}: {config.replicas} replicas on {address}", file=sys.stderr)
    if service.dashboard:
        print(f"  Ray's dashboard: {service.dashboard}", file=sys.stderr)
    print(f"  curl {address}/v1/models", file=sys.stderr)
