"""A real server on a real socket, in a thread of the test's process."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from server.api.app import create_app
from server.api.http_server import DrainingServer, open_socket
from server.api.protocols import EngineClient
from server.config import ServerConfig


@contextmanager
def serving(engine: EngineClient, *, port: int = 0, **options: object) -> Iterator[str]:
    """Serve this engine while the block runs, on a free port if none is named; gives the URL."""
    config = ServerConfig(port=0, log_level="error", **options)
    bound = open_socket(config.host, port)
    port = bound.getsockname()[1]
    ready = threading.Event()
    server = DrainingServer(create_app(engine, config), engine, config, on_ready=ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    if not ready.wait(60):
        raise TimeoutError("the server did not start")
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.end()
        thread.join(20)
        gc.unfreeze()  # the server froze what this process, which outlives it, had made
        if thread.is_alive():
            raise TimeoutError("the server did not end")


def wait_until(condition, seconds: float = 5.0) -> bool:
    """Whether a condition becomes true within some time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return bool(condition())
