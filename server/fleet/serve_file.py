"""serve_file: the configuration file by which `serve deploy` brings a fleet up on a cluster."""

from __future__ import annotations

import json

from server.fleet.fleet_config import FleetConfig

IMPORT_PATH = "server.fleet.fleet_app:fleet_application"
_NOT_OF_A_CLUSTER = frozenset({"host", "port", "ray_address", "dashboard", "grace", "api_key"})


def serve_file(config: FleetConfig) -> str:
    """The file, as JSON, which is YAML too; holds what differs from the defaults, and no key."""
    defaults = {name: field.default for name, field in FleetConfig.model_fields.items()}
    settings = {
        name: value
        for name, value in config.model_dump(mode="json").items()
        if value != defaults[name] and name not in _NOT_OF_A_CLUSTER
    }
    application = {
        "name": "kvserve", "route_prefix": "/", "import_path": IMPORT_PATH, "args": settings,
    }  # fmt: skip
    http = {"host": config.host, "port": config.port, "request_timeout_s": config.drain}
    return json.dumps({"http_options": http, "applications": [application]}, indent=2) + "\n"
