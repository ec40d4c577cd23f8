"""create_app: which handler answers which path, and what every failure becomes.

The handlers are server.api's; whatever they raise, and whatever the router refuses, leaves in the
one error shape.
"""

from __future__ import annotations

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from server import answers, openapi, schemas
from server.api import Api
from server.config import ServerConfig
from server.errors import (
    ApiError,
    InternalError,
    InvalidRequestError,
    MethodNotAllowedError,
    NotFoundError,
)
from server.page import Page
from server.protocols import Engine
from server.streaming import encode
from server.version import VERSION
from server.views import Views

_JSON = "application/json"
_CLIENT_GONE = 499


def create_app(engine: Engine, config: ServerConfig) -> FastAPI:
    """Make the application.

    Args:
        engine: Started and stopped by whoever serves the application.
        config: The limits.
    """
    app = FastAPI(
        title="kvserve",
        version=VERSION,
        description="Text generation behind the OpenAI API. Every error has the one shape.",
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    _add_routes(app, Api(engine, config))
    _add_views(app, Views(engine, keep_alive=config.keep_alive_interval), Page())
    app.openapi = lambda: openapi.describe(app)  # type: ignore[method-assign]  # FastAPI's own way
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _client_gone)
    app.add_exception_handler(Exception, _unexpected_error)
    return app


def _add_routes(app: FastAPI, api: Api) -> None:
    """Every path, with what it reads and answers for the description."""
    bad = (400, 404, 413, 503)
    generation = (*bad, 429, 500)
    app.add_api_route(
        "/v1/completions",
        api.completions,
        methods=["POST"],
        openapi_extra=openapi.request_body(schemas.CompletionBody),
        responses=openapi.responses(answers.Completion, *generation, chunk=answers.Completion),
    )
    app.add_api_route(
        "/v1/chat/completions",
        api.chat_completions,
        methods=["POST"],
        openapi_extra=openapi.request_body(schemas.ChatBody),
        responses=openapi.responses(
            answers.ChatCompletion, *generation, chunk=answers.ChatCompletionChunk
        ),
    )
    app.add_api_route(
        "/tokenize",
        api.tokenize,
        methods=["POST"],
        openapi_extra=openapi.request_body(schemas.TokenizeBody),
        responses=openapi.responses(answers.Tokens, *bad),
    )
    app.add_api_route(
        "/detokenize",
        api.detokenize,
        methods=["POST"],
        openapi_extra=openapi.request_body(schemas.DetokenizeBody),
        responses=openapi.responses(answers.Text, *bad),
    )
    for path, handler, answer in (
        ("/v1/models", api.models, answers.ModelList),
        ("/tokenizer_info", api.tokenizer_info, answers.TokenizerInfo),
        ("/health", api.health, answers.Status),
        ("/ready", api.ready, answers.Status),
        ("/version", api.version, answers.Version),
    ):
        app.add_api_route(path, handler, responses=openapi.responses(answer, 503))
    app.add_api_route(
        "/v1/models/{model_id:path}",
        api.model,
        openapi_extra=openapi.path_parameter("model_id"),
        responses=openapi.responses(answers.ModelCard, 404, 503),
    )


def _add_views(app: FastAPI, views: Views, page: Page) -> None:
    """What shows the server at work: the cache, the timelines, and the page that draws them."""
    for path, handler in (
        ("/kv", views.kv),
        ("/kv/stream", views.kv_stream),
        ("/requests", views.requests),
        ("/requests/{request_id}/timeline", views.timeline),
    ):
        name = openapi.path_parameter("request_id") if "{" in path else None
        app.add_api_route(path, handler, openapi_extra=name)
    app.add_api_route("/", page.index, include_in_schema=False)
    app.add_api_route("/static/{name}", page.asset, include_in_schema=False)


def _error(error: ApiError) -> Response:
    return Response(
        encode(error.body()), error.status, media_type=_JSON, headers=dict(error.headers)
    )


async def _api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _error(error)


async def _http_error(request: Request, error: Exception) -> Response:
    """What the router refuses: an unknown path or method."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    if error.status_code == NotFoundError.status:
        return _error(NotFoundError(f"There is no path '{path}' on this server."))
    if error.status_code == MethodNotAllowedError.status:
        allow = (error.headers or {}).get("Allow", "")
        message = f"'{path}' does not allow {request.method}; use {allow}."
        return _error(MethodNotAllowedError(message, allow=allow))
    return _error(InvalidRequestError("The request is malformed."))


async def _client_gone(_request: Request, _cause: Exception) -> Response:
    """Nobody will read this answer."""
    return Response(status_code=_CLIENT_GONE)


async def _unexpected_error(request: Request, _cause: Exception) -> Response:
    """A fault of ours; the log has the traceback, the client a sentence."""
    return _error(InternalError(f"The server failed to answer {request.url.path[:200]}."))
