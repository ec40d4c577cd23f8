"""FleetService: a front and the replicas behind it, from their start to their end."""

from __future__ import annotations

import asyncio
import logging

from server.fleet.fleet_config import FleetConfig
from server.fleet.front import Front
from server.fleet.local_fleet import LocalFleet

logger = logging.getLogger(__name__)


class FleetService:
    """What a DrainingServer starts and stops.

    Args:
        config: Of the fleet.
    """

    def __init__(self, config: FleetConfig) -> None:
        self._replicas = LocalFleet(config)
        self.front = Front(self._replicas, config)
        """Answers, also while the replicas start."""
        self._upgrade: asyncio.Task[None] | None = None

    @property
    def dashboard(self) -> str | None:
        """Where Ray shows its dashboard, if it does."""
        return self._replicas.dashboard

    async def start(self) -> None:
        """Bring the replicas up."""
        await self._replicas.start()

    def upgrade(self) -> None:
        """Begin to replace the replicas, unless that is being done."""
        if self._upgrade is None or self._upgrade.done():
            logger.info("replacing the replicas")
            self._upgrade = asyncio.ensure_future(self._replace())

    async def stop(self, grace: float) -> None:
        """Let what runs finish for `grace` seconds, end the rest, and take the replicas down."""
        await self.front.drain(grace)
        await self._replicas.stop()

    async def _replace(self) -> None:
        try:
            await self._replicas.upgrade()
        except Exception:
            logger.exception("the replicas could not be replaced")
        else:
            logger.info("the replicas are replaced")
