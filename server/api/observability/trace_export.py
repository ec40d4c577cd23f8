"""make_tracer: where traces go, as the options and OpenTelemetry's own variables say."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from server.config import ServerConfig
from server.errors import ConfigurationError
from server.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


def make_tracer(config: ServerConfig, *, replica: str = "") -> Tracer | None:
    """Make what makes spans; None if traces are off.

    Args:
        config: Says where they go.
        replica: Whose they are, if there are several.

    Raises:
        ConfigurationError: The extra is not installed.
    """
    if config.traces == "off":
        return None
    try:
        from opentelemetry.sdk import resources, trace  # noqa: PLC0415 - an optional extra
        from opentelemetry.sdk.trace import export  # noqa: PLC0415 - too
    except ImportError as error:
        raise _not_installed() from error
    names = {resources.SERVICE_NAME: "kvserve", resources.SERVICE_VERSION: VERSION}
    if replica:
        names[resources.SERVICE_INSTANCE_ID] = replica
    provider = trace.TracerProvider(resource=resources.Resource.create(names))
    exporter = export.ConsoleSpanExporter(sys.stderr) if config.traces == "console" else _otlp()
    provider.add_span_processor(export.BatchSpanProcessor(exporter))
    return provider.get_tracer("kvserve", VERSION)


def _otlp() -> object:
    """An exporter over HTTP, to where OTEL_EXPORTER_OTLP_ENDPOINT says."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - too
            OTLPSpanExporter,
        )
    except ImportError as error:
        raise _not_installed() from error
    return OTLPSpanExporter()


def _not_installed() -> ConfigurationError:
    return ConfigurationError("--traces needs OpenTelemetry: pip install 'kvserve[traces]'.")
