"""server.api.observability.trace_export: off unless asked for, and clear about what is missing."""

from __future__ import annotations

import sys

import pytest

from server.api.observability.trace_export import make_tracer
from server.config import ServerConfig
from server.errors import ConfigurationError


def test_traces_are_off_unless_asked_for():
    """Nothing of OpenTelemetry is made by default."""
    assert make_tracer(ServerConfig()) is None


def test_spans_say_whose_they_are(capsys):
    """A span on the console carries the service, its version and the replica."""
    tracer = make_tracer(ServerConfig(traces="console"), replica="r1")
    span = tracer.start_span("mine")
    assert span.resource.attributes["service.name"] == "kvserve"
    assert span.resource.attributes["service.instance.id"] == "r1"
    span.end()


@pytest.mark.parametrize("missing", ["opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"])
def test_a_missing_extra_is_named(monkeypatch, missing):
    """Who asks for traces without the extra is told how to install it."""
    for name in [name for name in sys.modules if name.startswith(missing)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigurationError, match=r"pip install 'kvserve\[traces\]'"):
        make_tracer(ServerConfig(traces="otlp"))
