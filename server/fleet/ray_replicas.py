"""RayReplicas: the replicas of a fleet, called through Ray's handle; Ray's errors end here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from server.errors import EngineUnavailableError, InternalError, OverloadedError
from server.fleet.journal import (
    ForwardedRequest,
    Journal,
    NotContinuableError,
    ReplicaLostError,
    Step,
)
from server.fleet.prefix_router import BLOCKS

_LOOK_SECONDS = 5.0
"""How long replicas are waited for that are asked how they are."""


class RayReplicas:
    """Calls replicas.

    Args:
        handle: Of the deployment of Replica.
    """

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle
        self._answers = handle.options(method_name="answer", stream=True)

    async def answer(
        self, request: ForwardedRequest, *, journal: Journal, blocks: Sequence[str]
    ) -> AsyncGenerator[Sequence[Step], None]:
        """Have the preferred replica answer; see Replica.answer.

        Raises:
            ReplicaLostError: It died, or its engine did.
            NotContinuableError: It cannot go on with what the journal says.
            ApiError: No replica takes the request.
        """
        response = self._answers.remote(request, journal=journal, **{BLOCKS: blocks})
        try:
            async for steps in response:
                yield steps
        except (ReplicaLostError, NotContinuableError):
            raise
        except BackPressureError as error:
            raise OverloadedError("The fleet is busy. Try again later.", retry_after=1) from error
        except DeploymentUnavailableError as error:
            raise EngineUnavailableError("The replicas do not start.") from error
        except RayTaskError as error:
            raise InternalError("A replica failed to answer.") from error
        except RayError as error:
            raise ReplicaLostError(type(error).__name__) from error
        finally:
            response.cancel()

    async def statuses(self) -> list[str]:
        """What the engines can do now, of those that say so in time."""
        return [each for each in await self._ask("status") if isinstance(each, str)]

    async def metrics(self) -> list[tuple[str, str]]:
        """The names and the metrics of those that say so in time."""
        return [each for each in await self._ask("metrics") if isinstance(each, tuple)]

    async def _ask(self, method: str) -> list[object]:
        try:
            answers = self._handle.broadcast(method)
            found: list[object] = await answers.results_async(
                timeout_s=_LOOK_SECONDS, return_exceptions=True
            )
        except (TimeoutError, RayError):
            return []
        return found
