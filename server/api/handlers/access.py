"""The two gates every HTTP request passes: its name and its line in the access log; then its key.

Plain ASGI, so that streams and leaving clients pass as they are. What the application lets fall is
caught here and answered in the one error shape, with the id under which the log has it. No text of
prompts or answers, no query and no key is ever logged.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.api.dialects.message_errors import message_error, speaks_messages
from server.api.handlers.api_keys import ApiKeys
from server.api.transport.chance import Chance
from server.api.transport.exchange import CURRENT, Exchange, request_id
from server.api.transport.wire import encode
from server.errors import ApiError, AuthenticationError, InternalError

logger = logging.getLogger(__name__)
access_logger = logging.getLogger("kvserve.access")
REQUEST_ID = "x-request-id"
REQUEST_ID_HEADERS = (REQUEST_ID, "request-id")
"""Where an answer names its exchange, for clients that know only the second."""
EXPOSED_HEADERS = (REQUEST_ID, "x-ignored-fields", "retry-after")
"""What a page of another site may read of an answer."""
CHANCE = "kvserve.chance"
"""The ASGI extension by which whoever has begun an exchange elsewhere says what it drew."""
OPEN_PATHS = frozenset({"/health", "/ready", "/version"})
_PAGE = "/"
_PAGE_FILES = "/static/"
_POLLED = frozenset({*OPEN_PATHS, "/metrics"})
"""Asked for by machines every few seconds; logged only when they fail or at level debug."""
_METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"})
_MAX_SHOWN = 200


def log_to_stdout(*, with_probes: bool = False) -> None:
    """Write the access log to standard output, one JSON object in each line and nothing else.

    Args:
        with_probes: Whether health checks and scrapes that succeed are written too.
    """
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    access_logger.handlers = [handler]
    access_logger.propagate = False
    access_logger.setLevel(logging.DEBUG if with_probes else logging.INFO)


class AccessLog:
    """Names each exchange, and says and counts what became of it.

    Args:
        app: What answers.
        exchanges: Where they are counted, by path as it is routed, method and status.
        enabled: Whether they are logged.
    """

    def __init__(
        self, app: ASGIApp, *, exchanges: Counter[tuple[str, str, str]], enabled: bool
    ) -> None:
        self._app = app
        self._exchanges = exchanges
        self._enabled = enabled

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the exchange."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange(
            request_id(Headers(scope=scope).get(REQUEST_ID)),
            chance=(scope.get("extensions") or {}).get(CHANCE) or Chance.new(),
        )
        names = REQUEST_ID_HEADERS if speaks_messages(scope["path"]) else (REQUEST_ID,)
        answer = _Answer(send, dict.fromkeys(names, exchange.request_id))
        token = CURRENT.set(exchange)
        started = time.perf_counter()
        try:
            await self._app(scope, receive, answer.send)
        except Exception:
            logger.exception("request %s failed", exchange.request_id)
            if not answer.status:
                failure = InternalError(f"The server failed to answer {_shown(scope['path'])}.")
                await error_response(failure, scope["path"])(scope, receive, answer.send)
        finally:
            CURRENT.reset(token)
            self._record(scope, exchange, answer, seconds=time.perf_counter() - started)

    def _record(self, scope: Scope, exchange: Exchange, answer: _Answer, *, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._exchanges[route, method, str(answer.status)] += 1
        is_dull = scope["path"] in _POLLED and answer.status < 400
        level = logging.DEBUG if is_dull else logging.INFO
        if not (self._enabled and access_logger.isEnabledFor(level)):
            return
        client = scope.get("client")
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request_id": exchange.request_id,
            "client": client[0] if client else None,
            "user_agent": _shown(Headers(scope=scope).get("user-agent", "")),
            "method": method,
            "path": _shown(scope["path"]),
            "status": answer.status,
            "complete": answer.is_complete,
            "seconds": round(seconds, 6),
            "bytes": answer.num_bytes,
            **exchange.facts,
        }
        access_logger.log(level, "%s", json.dumps(line))


class _Answer:
    """Response of one exchange: its status, its bytes, and whether it is complete."""

    def __init__(self, send: Send, headers: Mapping[str, str]) -> None:
        self._send = send
        self._headers = headers
        self.status = 0
        self.num_bytes = 0
        self.is_complete = False

    async def send(self, message: Message) -> None:
        """Pass a message on, with more headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message).update(self._headers)
        elif message["type"] == "http.response.body":
            self.num_bytes += len(message.get("body", b""))
            self.is_complete = not message.get("more_body", False)
        await self._send(message)


class KeyGate:
    """Lets nobody without a key through, if there are keys.

    The page and its files are open, as they hold nothing and ask for the key themselves.

    Args:
        app: What is behind the gate.
        keys: The keys.
    """

    def __init__(self, app: ASGIApp, *, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] == "http" and self._keys and not _is_open(scope):
            given = _given_keys(Headers(scope=scope))
            if not any(self._keys.accept(key) for key in given):
                await error_response(_refusal(given), scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)


def error_response(error: ApiError, path: str) -> Response:
    """An error as an answer, in the shape that clients of this path read."""
    if speaks_messages(path):
        body = encode(message_error(error).model_dump())
    else:
        body = encode(error.body())
    return Response(
        body,
        error.status,
        media_type="application/json",
        headers=dict(error.headers),
    )


def _is_open(scope: Scope) -> bool:
    path = scope["path"]
    is_page = path == _PAGE or path.startswith(_PAGE_FILES)
    return path in OPEN_PATHS or (is_page and scope["method"] in ("GET", "HEAD"))


def _given_keys(headers: Headers) -> list[bytes]:
    """Every key the client sent, whatever header it stands in."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    bearer = token if scheme.lower() == "bearer" else ""
    found = (bearer, headers.get("api-key", ""), headers.get("x-api-key", ""))
    return [key.strip().encode("latin-1") for key in found if key.strip()]


def _refusal(given: list[bytes]) -> AuthenticationError:
    if given:
        return AuthenticationError("The API key is not one of this server's.")
    return AuthenticationError(
        "This server needs an API key: send it as 'Authorization: Bearer KEY', or in the header "
        "'api-key' or 'x-api-key'."
    )


def _shown(text: str) -> str:
    """A client's text, short enough for a log."""
    return text[:_MAX_SHOWN]
