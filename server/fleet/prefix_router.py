"""PrefixRouter: Ray Serve's way to ask KnownBlocks where a request should go.

Ray keeps one in each process that calls the replicas, and the loads with it. The interface is
Ray's own and changes between its versions; pyproject.toml pins the one this was written for.
"""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from server.fleet.known_blocks import KnownBlocks

BLOCKS = "blocks"
"""The keyword argument of a call that names the prompt's blocks."""


class PrefixRouter(RequestRouter):  # type: ignore[misc]  # Ray is not there when types are checked
    """Prefers the replicas that know a prompt's beginning; else the least loaded."""

    def initialize_state(self, **limits: Any) -> None:  # noqa: ANN401 - as the configuration says
        """Begin with no knowledge; the arguments are KnownBlocks'."""
        self._known: KnownBlocks[ReplicaID] = KnownBlocks(**limits)

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Ranks of replicas, the preferred first; Ray takes the least loaded of the first rank.

        All others follow as the last rank, or requests for a full home would hold up the rest.
        """
        replicas = {each.replica_id: each for each in candidate_replicas}
        loads = {each: self.replica_queue_len_cache.get(each) or 0 for each in replicas}
        homes, others = self._known.rank(_blocks(pending_request), loads)
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        return [[replicas[each] for each in rank] for rank in (homes, others) if rank]

    def on_request_routed(
        self,
        pending_request: PendingRequest,
        replica_id: ReplicaID,
        result: object,  # noqa: ARG002 - Ray's signature
    ) -> None:
        """Remember where the blocks are now."""
        self._known.remember(_blocks(pending_request), replica_id)


def _blocks(request: PendingRequest | None) -> tuple[str, ...]:
    return () if request is None else request.kwargs.get(BLOCKS) or ()
