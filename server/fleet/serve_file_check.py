"""check_serve_file: whether Ray would do what a Serve configuration file of ours says.

Ray's schema accepts keys that it does not know and ignores them; here they are errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from ray.serve.schema import ServeDeploySchema

from server.config import configure
from server.errors import ConfigurationError
from server.fleet.fleet_config import FleetConfig
from server.fleet.serve_file import IMPORT_PATH


def check_serve_file(content: Mapping[str, Any]) -> None:
    """Check a file against Ray's schema, for keys that Ray does not know, and our own options.

    Args:
        content: As parsed.

    Raises:
        ConfigurationError: Names what is wrong.
    """
    try:
        schema = ServeDeploySchema.model_validate(dict(content))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = ".".join(map(str, problem["loc"]))
        raise ConfigurationError(f"the Serve file: {place}: {problem['msg']}") from error
    _check_keys(content, schema, "")
    for application in schema.applications:
        if application.import_path == IMPORT_PATH:
            configure(FleetConfig, application.args)


def _check_keys(given: object, model: object, place: str) -> None:
    """Refuse keys that a model of the schema has no field for, at any depth."""
    if isinstance(model, BaseModel) and isinstance(given, Mapping):
        unknown = given.keys() - type(model).model_fields.keys()
        if unknown:
            raise ConfigurationError(f"the Serve file: {place}{min(unknown)} is no key of it")
        for name, value in given.items():
            _check_keys(value, getattr(model, name), f"{place}{name}.")
    elif isinstance(model, list) and isinstance(given, list):
        for index, (one, other) in enumerate(zip(given, model, strict=True)):
            _check_keys(one, other, f"{place}{index}.")
