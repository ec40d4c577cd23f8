"""LocalFleet: the replicas of the fleet that this process brings up and takes down again.

It starts Ray, or joins a cluster, and deploys; what it started ends with it. Its methods belong to
the event loop; what Ray does blocks and happens in threads.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from server.engine.planning.resources import cpu_count
from server.errors import EngineUnavailableError
from server.fleet.fleet_config import FleetConfig
from server.fleet.front import Replicas
from server.fleet.journal import ForwardedRequest, Journal, Step

logger = logging.getLogger(__name__)
_LOCAL = "local"
_STORE_BYTES = 80 * 2**20
"""Of Ray's object store, through which nothing of ours goes."""


class LocalFleet:
    """Replicas, from their deployment to their end.

    Args:
        config: What is deployed, and where.
    """

    def __init__(self, config: FleetConfig) -> None:
        self._config = config
        self._replicas: Replicas | None = None
        self.dashboard: str | None = None
        """Where Ray shows its dashboard, if it does."""

    async def start(self) -> None:
        """Bring the replicas up and wait until they are ready.

        Raises:
            EngineUnavailableError: They do not start.
        """
        await asyncio.to_thread(self._start)
        _take_signals_back()

    async def upgrade(self) -> None:
        """Replace the replicas one after the other by new ones; no answer is cut off."""
        await asyncio.to_thread(self._deploy)

    async def stop(self) -> None:
        """Take the replicas down, and Ray if it was started here."""
        await asyncio.to_thread(self._stop)

    def answer(
        self, request: ForwardedRequest, *, journal: Journal, blocks: Sequence[str]
    ) -> AsyncGenerator[Sequence[Step], None]:
        """Have one of the replicas answer; see Replica.answer."""
        return self._ready.answer(request, journal=journal, blocks=blocks)

    async def statuses(self) -> list[str]:
        """What the replicas can do now; none can before the first are there."""
        return [] if self._replicas is None else await self._replicas.statuses()

    async def metrics(self) -> list[tuple[str, str]]:
        """The names and the metrics of the replicas."""
        return await self._ready.metrics()

    @property
    def _ready(self) -> Replicas:
        if self._replicas is None:
            raise EngineUnavailableError("The fleet is still starting.", code="loading")
        return self._replicas

    def _start(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray  # noqa: PLC0415 - an optional extra, and it reads the environment
        from ray import serve  # noqa: PLC0415 - too

        context = ray.init(**self._options())
        if self._config.ray_address == _LOCAL:
            serve.start(proxy_location="Disabled")  # nobody calls Ray's HTTP, our fronts are ours
        self.dashboard = f"http://{context.dashboard_url}" if context.dashboard_url else None
        self._deploy()

    def _options(self) -> dict[str, Any]:
        """How Ray is started, or which cluster is joined."""
        if self._config.ray_address != _LOCAL:
            return {"address": self._config.ray_address}
        return {
            "address": _LOCAL,
            "include_dashboard": self._config.dashboard,
            "object_store_memory": _STORE_BYTES,
            "log_to_driver": False,
            "runtime_env": {"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}},
        }

    def _deploy(self) -> None:
        from ray import serve  # noqa: PLC0415 - an optional extra

        from server.fleet.fleet_app import APPLICATION, replica_application  # noqa: PLC0415 - too
        from server.fleet.ray_replicas import RayReplicas  # noqa: PLC0415 - too

        is_local = self._config.ray_address == _LOCAL
        threads = self._config.threads or max(1, cpu_count() // self._config.replicas)
        config = self._config.model_copy(update={"threads": threads}) if is_local else self._config
        application = replica_application(config, num_cpus=0 if is_local else threads)
        try:
            handle = serve.run(application, name=APPLICATION, route_prefix=None)
        except RuntimeError as error:
            raise EngineUnavailableError(f"The replicas do not start: {error}") from error
        self._replicas = RayReplicas(handle)

    def _stop(self) -> None:
        import ray  # noqa: PLC0415 - an optional extra
        from ray import serve  # noqa: PLC0415 - too

        from server.fleet.fleet_app import APPLICATION  # noqa: PLC0415 - too

        self._replicas = None
        if ray.is_initialized():
            if self._config.ray_address == _LOCAL:
                serve.shutdown()
            else:
                serve.delete(APPLICATION)
            ray.shutdown()


def _take_signals_back() -> None:
    """Have Python's handlers called again: Ray's library puts its own, which abort, before them."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.getsignal(number))
