"""front_application: a front behind the gates that every HTTP request passes."""

from __future__ import annotations

from collections import Counter

from fastapi.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from server.api.app import cross_origin_rules
from server.api.handlers.access import AccessLog, KeyGate
from server.api.handlers.api_keys import ApiKeys
from server.api.observability.trace_export import make_tracer
from server.fleet.fleet_config import FleetConfig
from server.fleet.front import Front


def front_application(front: Front, config: FleetConfig) -> ASGIApp:
    """The front with its gates: foreign sites, the access log, keys.

    Raises:
        ConfigurationError: The keys cannot be read.
    """
    inner: ASGIApp = KeyGate(front, keys=ApiKeys.from_config(config))
    tracer = make_tracer(config, replica="front")
    if tracer is not None:
        from server.api.observability.traces import Traces  # noqa: PLC0415 - an optional extra

        inner = Traces(inner, tracer=tracer)
    logged = AccessLog(inner, exchanges=Counter(), enabled=config.access_log is not False)
    return CORSMiddleware(logged, **cross_origin_rules(config))
