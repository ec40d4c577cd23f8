"""Serving on a socket: uvicorn's run, and what SIGTERM does.

The first SIGTERM, SIGINT or SIGHUP drains: the engine says it takes no more, /ready turns 503,
running requests get the grace time and the rest an error event; then the process ends with code 0,
whatever its threads do. A second one ends at once. A server that waits for requests sleeps:
nothing in it ticks.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from email.utils import formatdate
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from server.api.app import create_app
from server.api.http_protocol import HeadLimits, HttpProtocol
from server.api.observability.trace_export import make_tracer
from server.api.protocols import EngineClient, Service
from server.config import ServerConfig
from server.engine_status import EngineStatus
from server.errors import ConfigurationError

logger = logging.getLogger(__name__)
_IDLE_CONNECTION_SECONDS = 75
"""Longer than the minute that proxies usually keep an idle connection."""
_FLUSH_SECONDS = 5
"""What responses get to leave after the engine has ended them."""
_PATIENCE_SECONDS = 10
"""After the grace time, until the process ends whatever it still does."""


def open_socket(host: str, port: int) -> socket.socket:
    """Bind, so that a taken port is known before a model is loaded.

    Args:
        host: A name or an address, IPv4 or IPv6.
        port: 0 takes a free one.

    Raises:
        ConfigurationError: The address cannot be had; the message says why.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with ExitStack() as on_failure:
            bound = on_failure.enter_context(socket.socket(family, kind))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            on_failure.pop_all()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigurationError(
            f"cannot listen on {host}:{port}: {reason}. Choose another --host or --port."
        ) from error
    return bound


def open_unix_socket(path: Path) -> socket.socket:
    """Bind a Unix socket; one that a server has left behind is replaced.

    Raises:
        ConfigurationError: It cannot be had; the message says why.
    """
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and not _is_served(path):
            path.unlink()
        bound.bind(str(path))
    except OSError as error:
        bound.close()
        reason = error.strerror or str(error)
        raise ConfigurationError(
            f"cannot listen on {path}: {reason}. Choose another --uds."
        ) from error
    return bound


def _is_served(path: Path) -> bool:
    """Whether somebody listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0


_COLLECTED_AFTER = (700, 10, 10)
"""Python's own thresholds, which the command line raised for loading."""


class _SharedState(ServerState):
    """What connections share; the headers that every answer gets tell when they were asked for.

    uvicorn renews its Date header every second, whether anybody asks or not.
    """

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """What every answer begins with."""
        return [(b"date", formatdate(usegmt=True).encode()), *self._headers]

    @default_headers.setter
    def default_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        self._headers = headers


class DrainingServer(uvicorn.Server):
    """A uvicorn server that lets what it serves finish before it closes its sockets.

    It has no use for what uvicorn looks after ten times a second: a largest number of requests, and
    somebody to be told that it still runs.

    Args:
        app: What answers.
        service: What the application needs: started with the server, drained before its end.
        config: The grace time, and uvicorn's log level.
        on_ready: Called once, when the model is loaded.
    """

    def __init__(
        self,
        app: ASGIApp,
        service: Service,
        config: ServerConfig,
        *,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        limits = HeadLimits(line=config.max_header_line, whole=config.max_header_bytes)
        super().__init__(
            uvicorn.Config(
                app,
                http=partial(HttpProtocol, limits=limits),  # type: ignore[arg-type]  # called like a class
                log_config=None,  # its messages go where ours go
                log_level=config.log_level,
                access_log=False,  # the application writes its own
                timeout_keep_alive=_IDLE_CONNECTION_SECONDS,
                timeout_graceful_shutdown=_FLUSH_SECONDS,
                server_header=False,
                lifespan="off",
                ws="none",
            )
        )
        self.server_state = _SharedState()
        self._ended = asyncio.Event()
        self._service = service
        self._grace = config.grace
        self._on_ready = on_ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loading: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal or `end`; the model loads meanwhile.

        Raises:
            Exception: Whatever kept the engine from starting.
        """
        self._loop = asyncio.get_running_loop()
        try:
            with _hang_up_as(self.handle_exit):
                await super().serve(sockets)
        finally:
            self._loop = None
        if self._loading is not None and self._loading.done():
            self._loading.result()
        if self._draining is None:
            await self._stop_engine(_FLUSH_SECONDS)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and begin to load."""
        await super().startup(sockets)
        self._loading = asyncio.ensure_future(self._load_engine())

    async def main_loop(self) -> None:
        """Sleep until the end."""
        await self._ended.wait()

    def end(self) -> None:
        """Close the sockets and let `serve` return; may be called by any thread."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._ended.set)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's
        """Drain at the first signal, end at once at the second."""
        if self.should_exit or self._draining is not None or self._loop is None:
            os._exit(128 + sig)
        logger.info("%s: letting running requests finish", signal.Signals(sig).name)
        _end_process_after(self._grace + _PATIENCE_SECONDS)
        self._loop.call_soon_threadsafe(self._start_drain)

    async def _load_engine(self) -> None:
        try:
            await self._service.start()
        except BaseException:
            self.end()
            raise
        _keep_for_good()
        self._on_ready()

    def _start_drain(self) -> None:
        if self._draining is None:
            self._draining = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        try:
            await self._stop_engine(self._grace)
        finally:
            self.end()

    async def _stop_engine(self, grace: float) -> None:
        """Stop the engine; one that is still loading has nothing to finish and dies with us."""
        if self._loading is not None and self._loading.done():
            await self._service.stop(grace)


@contextmanager
def _hang_up_as(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let the end of a terminal be a signal like the others, unless nohup has it ignored."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGHUP, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def _end_process_after(seconds: float) -> None:
    """End the process after some time, even if the event loop does not come to it."""
    timer = threading.Timer(seconds, os._exit, (0,))
    timer.daemon = True
    timer.start()


def _keep_for_good() -> None:
    """Leave what is loaded out of garbage collections, each of which holds up every stream.

    Next to nothing of it is garbage; looking for that would hold up the first request. What
    loading has used and freed goes back to the system, where the C library can do that.
    """
    gc.freeze()
    gc.set_threshold(*_COLLECTED_AFTER)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def serve(
    engine: EngineClient,
    config: ServerConfig,
    bound: socket.socket,
    *,
    on_ready: Callable[[], None] = lambda: None,
) -> int:
    """Serve until the process is told to end.

    Args:
        engine: Loads its model now.
        config: Everything else.
        bound: The socket to listen on.
        on_ready: Called once, when requests are accepted.

    Returns:
        The exit code: 0 after a drain, 1 if the engine died.

    Raises:
        Exception: Whatever kept the engine from starting.
    """
    app = create_app(engine, config, tracer=make_tracer(config))
    server = DrainingServer(app, engine, config, on_ready=on_ready)
    server.run(sockets=[bound])
    return 1 if engine.status is EngineStatus.DEAD else 0
