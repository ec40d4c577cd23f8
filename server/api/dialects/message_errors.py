"""Errors in the shape that clients of /v1/messages read, and in the sentences they look for."""

from __future__ import annotations

import secrets

from server.api.dialects.message_answers import MessageError, MessageErrorDetail
from server.api.transport.exchange import CURRENT
from server.errors import ApiError, ContextLengthError

PATH = "/v1/messages"
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def speaks_messages(path: str) -> bool:
    """Whether the clients of a path read this shape."""
    return path == PATH or path.startswith(f"{PATH}/")


def message_error(error: ApiError) -> MessageError:
    """An error as clients of /v1/messages read it, with the id of the HTTP exchange."""
    exchange = CURRENT.get()
    return MessageError(
        error=MessageErrorDetail(type=_TYPES.get(error.status, "api_error"), message=_text(error)),
        request_id=f"req_{secrets.token_hex(16)}" if exchange is None else exchange.request_id,
    )


def _text(error: ApiError) -> str:
    """What is wrong; of a full context in the sentences by which clients know it."""
    if not isinstance(error, ContextLengthError):
        return error.message
    room = error.limit - 1  # one token must be left for the answer
    if error.prompt <= room:
        return (
            f"input length and `max_tokens` exceed context limit: {error.prompt} + "
            f"{error.completion} > {error.limit}, decrease input length or `max_tokens` and try "
            "again"
        )
    text = f"prompt is too long: {error.prompt} tokens > {room} maximum"
    return text if error.is_exact else f"{text} (at least; it was not counted to its end)"
