"""FleetConfig: the options of `serve`, and those that only many replicas have."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator

from server.config import ServerConfig


class FleetConfig(ServerConfig):
    """How a model is served by replicas; the options of an engine are each replica's."""

    replicas: Annotated[int, Field(ge=1, le=1000)] = 2
    """Replicas at first, and the least there are."""
    max_replicas: Annotated[int | None, Field(ge=1, le=1000)] = None
    """The most there are: more are started while each has more requests than --target-requests.
    As many as --replicas if none."""
    target_requests: Annotated[float, Field(gt=0)] = 16.0
    """Requests for each replica, running and waiting, to which their number is adapted."""
    request_timeout: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = 540.0
    """Seconds a request may take in all; then it ends with an error. Less than --drain."""
    drain: Annotated[float, Field(gt=0, allow_inf_nan=False, validate_default=True)] = 600.0
    """Seconds a replica that is replaced gets to finish what it runs; what then still runs goes on
    at another one."""
    known_blocks: Annotated[int, Field(ge=0)] = 100_000
    """Blocks of 256 characters that a front knows the homes of, at some 300 bytes each; about 2000
    for each replica find all there is to find."""
    ray_address: str = "local"
    """The Ray cluster to use, such as auto or 10.0.0.1:6379; local starts one on this machine."""
    dashboard: bool = True
    """Whether a cluster that is started here has Ray's dashboard."""

    @field_validator("max_replicas")
    @classmethod
    def _at_least_replicas(cls, value: int | None, info: ValidationInfo) -> int | None:
        least = info.data.get("replicas", 1)
        if value is not None and value < least:
            raise ValueError(f"must be at least --replicas, {least}")
        return value

    @field_validator("drain")
    @classmethod
    def _longer_than_a_request(cls, value: float, info: ValidationInfo) -> float:
        limit = info.data.get("request_timeout", 0)
        if limit is None or value <= limit:
            raise ValueError(f"must be more than --request-timeout, {limit} seconds")
        return value

    def of_a_replica(self) -> dict[str, Any]:
        """Every field as plain data, for processes whose environment is not ours.

        Keys and foreign sites are dealt with before a request comes to a replica.
        """
        own = {"api_key": None, "api_key_file": None, "cors_origins": ""}
        return dict(self) | own
