"""The fleet as Ray Serve deploys it: replicas, their router, and fronts for a cluster.

`fleet_application` is what a Serve configuration file names as its import path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from server.config import configure
from server.fleet.fleet_config import FleetConfig
from server.fleet.fleet_front import front_application
from server.fleet.front import Front
from server.fleet.ray_replicas import RayReplicas
from server.fleet.replica import Replica

APPLICATION = "kvserve"
_ROUTER = "server.fleet.prefix_router.PrefixRouter"
_LOOK_BACK_SECONDS = 30.0
_UPSCALE_SECONDS = 15.0
_DOWNSCALE_SECONDS = 600.0
_HEALTH_PERIOD_SECONDS = 5.0
_HEALTH_TIMEOUT_SECONDS = 10.0


class ServedFront:
    """A front that Ray Serve's proxies call, for clusters.

    Args:
        settings: The fields of FleetConfig that were given.
        replicas: The handle of their deployment.
    """

    def __init__(self, settings: Mapping[str, Any], replicas: DeploymentHandle) -> None:
        self._config = FleetConfig(**settings)
        self._replicas = replicas

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """The application that the proxies call."""
        return front_application(Front(RayReplicas(self._replicas), self._config), self._config)


def replica_application(config: FleetConfig, *, num_cpus: float) -> Application:
    """The replicas.

    Args:
        config: Of the fleet.
        num_cpus: What Ray reserves for each of them.
    """
    seats = config.max_num_seqs + config.max_queue
    return (
        serve.deployment(Replica)
        .options(
            name="replicas",
            max_ongoing_requests=seats,  # more are for the replica itself to refuse, with 429
            max_queued_requests=seats,
            graceful_shutdown_timeout_s=config.drain,
            health_check_period_s=_HEALTH_PERIOD_SECONDS,
            health_check_timeout_s=_HEALTH_TIMEOUT_SECONDS,
            ray_actor_options={"num_cpus": num_cpus},
            request_router_config=RequestRouterConfig(
                request_router_class=_ROUTER,
                request_router_kwargs={"max_blocks": config.known_blocks},
            ),
            **_size(config),
        )
        .bind(config.of_a_replica())
    )


def fleet_application(settings: Mapping[str, Any]) -> Application:
    """Replicas and fronts, for a Serve configuration file.

    Args:
        settings: Fields of FleetConfig, as the file's `args` gives them.

    Raises:
        ConfigurationError: A value is out of bounds.
    """
    config = configure(FleetConfig, settings)
    replicas = replica_application(config, num_cpus=config.threads or 1)
    front = serve.ingress()(ServedFront)
    return (
        serve.deployment(front)
        .options(
            name="fronts",
            max_ongoing_requests=1000,
            graceful_shutdown_timeout_s=config.drain,
            ray_actor_options={"num_cpus": 0.1},
        )
        .bind(dict(settings), replicas)
    )


def _size(config: FleetConfig) -> dict[str, Any]:
    """How many replicas there are: always as many, or by what they have to do."""
    if config.max_replicas is None or config.max_replicas == config.replicas:
        return {"num_replicas": config.replicas}
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=config.replicas,
            initial_replicas=config.replicas,
            max_replicas=config.max_replicas,
            target_ongoing_requests=config.target_requests,
            look_back_period_s=_LOOK_BACK_SECONDS,
            upscale_delay_s=_UPSCALE_SECONDS,
            downscale_delay_s=_DOWNSCALE_SECONDS,
        )
    }
