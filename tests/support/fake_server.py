"""A server in a process of its own, for tests of signals: a slow engine that tells its port."""

from __future__ import annotations

import sys

from fakes import FakeEngine

from server.api.http_server import open_socket, serve
from server.config import ServerConfig


def main(step_seconds: float, grace: float) -> int:
    engine = FakeEngine("x" * 100)
    engine.step_seconds = step_seconds
    bound = open_socket("127.0.0.1", 0)
    config = ServerConfig(port=0, grace=grace, log_level="error")
    port = bound.getsockname()[1]

    def tell() -> None:
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()

    return serve(engine, config, bound, on_ready=tell)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), float(sys.argv[2])))
