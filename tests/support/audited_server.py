"""A server in a process of its own that looks over its cache once it has drained.

Prints its port when it is ready. The exit code is the server's, or an assertion's if the cache
still holds a request then or its books do not agree.
"""

from __future__ import annotations

import json
import sys

from server.api.http_server import open_socket, serve
from server.config import ServerConfig
from server.engine.async_engine import AsyncEngine
from server.engine.loaded_engine import LoadedEngine, build_engine


def main(options: str) -> int:
    """Serve with these ServerConfig fields, given as JSON, until SIGTERM."""
    config = ServerConfig(**json.loads(options))
    bound = open_socket(config.host, 0)
    built: list[LoadedEngine] = []

    def build() -> LoadedEngine:
        built.append(build_engine(config))
        return built[0]

    def tell() -> None:
        sys.stdout.write(f"{bound.getsockname()[1]}\n")
        sys.stdout.flush()

    code = serve(AsyncEngine(build), config, bound, on_ready=tell)
    manager = built[0].engine.scheduler.manager
    manager.check_integrity()
    assert manager.usage == 0, "the cache still holds a request"
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
