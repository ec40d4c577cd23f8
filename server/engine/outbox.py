"""Outbox: the outputs of one call, from the step that brings them to the call that waits.

Owned by the call and filled by AsyncEngine, both on the event loop. It never waits for room.
"""

from __future__ import annotations

import asyncio

from server.request import RequestOutput


class Outbox:
    """A queue for one reader, who takes everything that has come at once.

    A token of each stream passes here in every step: asyncio's queue takes three times as long.
    """

    def __init__(self) -> None:
        self._outputs: list[RequestOutput] = []
        self._waiting: asyncio.Future[None] | None = None

    def put(self, output: RequestOutput) -> None:
        """Leave an output, and wake the reader."""
        self._outputs.append(output)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def take(self) -> list[RequestOutput]:
        """Wait for outputs; returns all that are there, in the order they came."""
        if not self._outputs:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        outputs, self._outputs = self._outputs, []
        return outputs
