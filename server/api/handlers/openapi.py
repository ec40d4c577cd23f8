"""The OpenAPI description of the request bodies.

Bodies are parsed by the transport's json_body and by api.schemas, not by FastAPI, so the
description of what they hold is added to the routes here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from server.api.dialects import message_answers, response_answers
from server.api.schemas import message_schemas, response_schemas, wire_types
from server.api.schemas import requests as schemas

_TEMPLATE = "#/components/schemas/{model}"
_BODIES: tuple[type[BaseModel], ...] = (
    schemas.CompletionBody,
    schemas.ChatBody,
    schemas.TokenizeBody,
    schemas.DetokenizeBody,
    schemas.CompareBody,
    schemas.AttentionBody,
    response_schemas.ResponseBody,
    message_schemas.MessageBody,
    message_schemas.MessageCountBody,
    wire_types.Completion,
    wire_types.ChatCompletionChunk,
    response_answers.ResponseEvent,
    message_answers.MessageEvent,
    wire_types.ErrorAnswer,
)


def request_body(schema: type[BaseModel]) -> dict[str, Any]:
    """The `openapi_extra` of a route that reads this body."""
    content = {"application/json": {"schema": _reference(schema)}}
    return {"requestBody": {"required": True, "content": content}}


def path_parameter(name: str) -> dict[str, Any]:
    """The `openapi_extra` of a route with this part of its path."""
    where = {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
    return {"parameters": [where]}


def responses(
    answer: type[BaseModel],
    *statuses: int,
    chunk: type[BaseModel] | None = None,
    error: type[BaseModel] = wire_types.ErrorAnswer,
) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route: its answer, its stream's events, and its errors."""
    good: dict[str, Any] = {"model": answer, "description": "The answer"}
    if chunk is not None:
        good["description"] = "The answer; a stream of such events if `stream` is true"
        good["content"] = {"text/event-stream": {"schema": _event(chunk)}}
    return {200: good, **_errors(error, statuses)}


def view(*statuses: int, streams: bool = False) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route whose answer is for looking at: whether it streams, its errors."""
    good: dict[str, Any] = {"description": "The answer"}
    if streams:
        good["content"] = {"text/event-stream": {}}
    return {200: good, **_errors(wire_types.ErrorAnswer, statuses)}


def _errors(shape: type[BaseModel], statuses: Sequence[int]) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": shape, "description": "An error"} for status in statuses}


def describe(app: FastAPI) -> dict[str, Any]:
    """The whole description: FastAPI's, with the types of bodies and events."""
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    inputs: list[tuple[type[BaseModel], Any]] = [(body, "validation") for body in _BODIES]
    _, definitions = models_json_schema(inputs, ref_template=_TEMPLATE)
    components = document.setdefault("components", {}).setdefault("schemas", {})
    # Of a type that is both sent and answered, what a client may leave out is what counts.
    components |= definitions["$defs"]
    return document


def _event(chunk: type[BaseModel]) -> dict[str, Any]:
    """A server-sent event whose data is JSON of this type, as OpenAPI 3.2 describes one."""
    data = {"contentMediaType": "application/json", "contentSchema": _reference(chunk)}
    fields = {"event": {"type": "string"}, "data": {"type": "string", **data}}
    return {"type": "object", "properties": fields}


def _reference(schema: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _TEMPLATE.format(model=schema.__name__)}
