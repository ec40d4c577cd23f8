"""create_app: which handler answers which path, and what every failure becomes.

The handlers are server.handlers'; whatever they raise, and whatever the router refuses, leaves in
the one error shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from server.api.dialects import message_answers, response_answers
from server.api.handlers import openapi
from server.api.handlers.access import EXPOSED_HEADERS, AccessLog, KeyGate, error_response
from server.api.handlers.api import Api
from server.api.handlers.api_keys import ApiKeys
from server.api.handlers.experiments import Experiments
from server.api.handlers.other_forms import OtherForms
from server.api.handlers.page import Page
from server.api.handlers.views import Views
from server.api.observability.metrics import Metrics
from server.api.protocols import EngineClient
from server.api.schemas import message_schemas, response_schemas, wire_types
from server.api.schemas import requests as schemas
from server.api.transport.workers import Workers
from server.config import ServerConfig
from server.errors import (
    ApiError,
    InternalError,
    InvalidRequestError,
    MethodNotAllowedError,
    NotFoundError,
)
from server.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

_CLIENT_GONE = 499
_PREFLIGHT_SECONDS = 600
"""How long a browser remembers what it may send."""


def create_app(
    engine: EngineClient, config: ServerConfig, *, tracer: Tracer | None = None
) -> FastAPI:
    """Make the application.

    Args:
        engine: Started and stopped by whoever serves the application.
        config: The limits.
        tracer: Makes spans of OpenTelemetry; none if traces are off.
    """
    app = FastAPI(
        title="kvserve",
        version=VERSION,
        description="Text generation behind the OpenAI API. Every error has the one shape.",
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    metrics = Metrics(engine)
    workers = Workers(config.max_num_seqs + config.max_queue)
    api = Api(engine, config, metrics, workers=workers)
    _add_routes(app, api)
    _add_other_forms(app, OtherForms(api.dispatcher))
    _add_gates(app, config, metrics, tracer=tracer)
    _add_experiments(app, Experiments(engine, api.dispatcher, workers=workers))
    _add_views(app, Views(engine, keep_alive=config.keep_alive_interval, workers=workers), Page())
    _answer_head(app)
    app.openapi = lambda: openapi.describe(app)  # type: ignore[method-assign]  # FastAPI's own way
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _client_gone)
    app.add_exception_handler(Exception, _unexpected_error)
    return app


def _add_routes(app: FastAPI, api: Api) -> None:
    """Routes of completions, chats, tokens, models and states, described for OpenAPI."""
    bad = (400, 404, 413, 503)
    generation = (*bad, 429, 500)
    app.add_api_route(
        "/v1/completions",
        api.completions,
        methods=["POST"],
        openapi_extra=openapi.request_body(schemas.CompletionBody),
        responses=openapi.responses(
            wire_types.Completion, *generation, chunk=wire_types.Completion
        ),
    )
    app.add_api_route(
        "/v1/chat/completions",
        api.chat_completions,
        methods=["POST"],
        openapi_extra=openapi.request_body(schemas.ChatBody),
        responses=openapi.responses(
            wire_types.ChatCompletion, *generation, chunk=wire_types.ChatCompletionChunk
        ),
    )
    app.add_api_route(
        "/v1/chat/completions/input_tokens",
        api.chat_tokens,
        methods=["POST"],
        openapi_extra=openapi.request_body(schemas.ChatBody),
        responses=openapi.responses(response_answers.InputTokens, *bad),
    )
    app.add_api_route(
        "/tokenize",
        api.tokenize,
        methods=["POST"],
        openapi_extra=openapi.request_body(schemas.TokenizeBody),
        responses=openapi.responses(wire_types.Tokens, *bad),
    )
    app.add_api_route(
        "/detokenize",
        api.detokenize,
        methods=["POST"],
        openapi_extra=openapi.request_body(schemas.DetokenizeBody),
        responses=openapi.responses(wire_types.Text, *bad),
    )
    for path, handler, answer in (
        ("/v1/models", api.models, wire_types.ModelList),
        ("/tokenizer_info", api.tokenizer_info, wire_types.TokenizerInfo),
        ("/health", api.health, wire_types.Status),
        ("/ready", api.ready, wire_types.Status),
        ("/version", api.version, wire_types.Version),
    ):
        app.add_api_route(path, handler, responses=openapi.responses(answer, 503))
    app.add_api_route("/metrics", api.metrics, response_class=PlainTextResponse)
    app.add_api_route(
        "/v1/models/{model_id:path}",
        api.model,
        openapi_extra=openapi.path_parameter("model_id"),
        responses=openapi.responses(wire_types.ModelCard, 404, 503),
    )


def _add_other_forms(app: FastAPI, forms: OtherForms) -> None:
    """Chats in other words, with the errors that their clients read."""
    errors = (400, 404, 413, 429, 500, 503)
    for path, handler, body, good, chunk, bad in (
        ("/v1/responses", forms.responses, response_schemas.ResponseBody,
         response_answers.ResponseObject, response_answers.ResponseEvent, wire_types.ErrorAnswer),
        ("/v1/responses/input_tokens", forms.response_tokens, response_schemas.ResponseBody,
         response_answers.InputTokens, None, wire_types.ErrorAnswer),
        ("/v1/messages", forms.messages, message_schemas.MessageBody,
         message_answers.MessageObject, message_answers.MessageEvent, message_answers.MessageError),
        ("/v1/messages/count_tokens", forms.message_tokens, message_schemas.MessageCountBody,
         message_answers.MessageTokens, None, message_answers.MessageError),
    ):  # fmt: skip
        app.add_api_route(
            path,
            handler,
            methods=["POST"],
            openapi_extra=openapi.request_body(body),
            responses=openapi.responses(good, *errors, chunk=chunk, error=bad),
        )


def _add_experiments(app: FastAPI, experiments: Experiments) -> None:
    """Routes of cache comparisons and of attention maps."""
    for path, handler, body in (
        ("/v1/compare", experiments.compare, schemas.CompareBody),
        ("/v1/attention", experiments.attention, schemas.AttentionBody),
    ):
        app.add_api_route(
            path,
            handler,
            methods=["POST"],
            openapi_extra=openapi.request_body(body),
            responses=openapi.view(
                400, 404, 413, 429, 500, 503, streams="stream" in body.model_fields
            ),
        )


def _add_gates(
    app: FastAPI, config: ServerConfig, metrics: Metrics, *, tracer: Tracer | None
) -> None:
    """Middleware, the outermost last: it is what a request meets first."""
    app.add_middleware(KeyGate, keys=ApiKeys.from_config(config))
    if tracer is not None:
        from server.api.observability.traces import Traces  # noqa: PLC0415 - an optional extra

        app.add_middleware(Traces, tracer=tracer)
    logs = config.access_log is not False
    app.add_middleware(AccessLog, exchanges=metrics.num_exchanges, enabled=logs)
    app.add_middleware(CORSMiddleware, **cross_origin_rules(config))


def cross_origin_rules(config: ServerConfig) -> dict[str, Any]:
    """What CORSMiddleware is told: which pages of other sites may do what here."""
    return {
        "allow_origins": [site.strip() for site in config.cors_origins.split(",") if site.strip()],
        "allow_methods": ["GET", "HEAD", "POST"],
        "allow_headers": ["*"],
        "expose_headers": EXPOSED_HEADERS,
        "max_age": _PREFLIGHT_SECONDS,
    }


def _add_views(app: FastAPI, views: Views, page: Page) -> None:
    """Routes that show the server at work: the cache, the timelines, the page that draws them."""
    for path, handler in (
        ("/kv", views.kv),
        ("/kv/stream", views.kv_stream),
        ("/requests", views.requests),
        ("/requests/{request_id}/timeline", views.timeline),
    ):
        name = openapi.path_parameter("request_id") if "{" in path else None
        described = openapi.view(400, 404, 503, streams=path.endswith("/stream"))
        app.add_api_route(path, handler, openapi_extra=name, responses=described)
    app.add_api_route("/", page.index, include_in_schema=False)
    app.add_api_route("/static/{name}", page.asset, include_in_schema=False)


def _answer_head(app: FastAPI) -> None:
    """Let everything that can be read be asked for without its body, as probes and proxies do."""
    for route in tuple(app.routes):
        if isinstance(route, APIRoute) and "GET" in (route.methods or ()):
            app.add_api_route(route.path, route.endpoint, methods=["HEAD"], include_in_schema=False)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error, request.url.path)


async def _http_error(request: Request, error: Exception) -> Response:
    """Error response to what the router refuses: an unknown path or method."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    refusal: ApiError = InvalidRequestError("The request is malformed.")
    if error.status_code == NotFoundError.status:
        refusal = NotFoundError(f"There is no path '{path}' on this server.")
    elif error.status_code == MethodNotAllowedError.status:
        allow = (error.headers or {}).get("Allow", "")
        message = f"'{path}' does not allow {request.method}; use {allow}."
        refusal = MethodNotAllowedError(message, allow=allow)
    return error_response(refusal, path)


async def _client_gone(_request: Request, _cause: Exception) -> Response:
    """Nobody will read this answer."""
    return Response(status_code=_CLIENT_GONE)


async def _unexpected_error(request: Request, _cause: Exception) -> Response:
    """A fault of ours; the log has the traceback, the client a sentence."""
    path = request.url.path[:200]
    return error_response(InternalError(f"The server failed to answer {path}."), path)
