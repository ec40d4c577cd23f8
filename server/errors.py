"""Every error a client or an operator can meet, with the HTTP status and the body it becomes.

KvserveError
├── ConfigurationError              the operator's: options that do not fit together
└── ApiError                        a client's: has a status, a type, a code and maybe a param
    ├── InvalidRequestError         400
    │   ├── UnknownParameterError       a field nobody knows
    │   ├── UnsupportedParameterError   a field we know and do not serve
    │   ├── UnsupportedValueError       a field we serve, but not at this value
    │   ├── ContextLengthError          more tokens than the context holds
    │   ├── AuthenticationError         401
    │   ├── NotFoundError               404
    │   ├── ModelNotFoundError          404
    │   ├── MethodNotAllowedError       405
    │   ├── RequestReadTimeoutError     408
    │   ├── BodyTooLargeError           413
    │   ├── UnsupportedMediaTypeError   415
    │   └── HeadersTooLargeError        431
    ├── OverloadedError             429, with Retry-After
    ├── EngineUnavailableError      503: the engine is loading, draining or dead
    ├── InternalError               500
    └── RequestTimeoutError         504

Messages are sentences for people; they never carry a traceback or a Python repr.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar


class KvserveError(Exception):
    """Anything this server raises on purpose."""


class ConfigurationError(KvserveError):
    """The options the server was started with cannot work; the message says what to change."""


class ApiError(KvserveError):
    """An answer that is an error.

    Args:
        message: What is wrong: the field, the bound, the value and what to do.
        param: The field at fault, None if there is no single one.
        code: A word for programs; the class's own by default.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    default_code: ClassVar[str | None] = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code if code is not None else self.default_code

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers the answer carries beside its body."""
        return {}

    def body(self) -> dict[str, object]:
        """The one shape of every error, streamed or not."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }


class InvalidRequestError(ApiError):
    """The request cannot be served as it is."""

    status = 400
    type = "invalid_request_error"


class UnknownParameterError(InvalidRequestError):
    """Fields that this server does not know.

    Args:
        names: All of them.
        guesses: The nearest known name of those that have one.
    """

    default_code = "unknown_parameter"
    _MAX_NAMED = 100

    def __init__(self, names: Sequence[str], guesses: Mapping[str, str]) -> None:
        plural = "s" if len(names) > 1 else ""
        listed = ", ".join(f"'{name}'" for name in names[: self._MAX_NAMED])
        if len(names) > self._MAX_NAMED:
            listed += f" and {len(names) - self._MAX_NAMED} more"
        hints = "".join(
            f" Did you mean '{guess}'" + (f" instead of '{name}'?" if plural else "?")
            for name, guess in guesses.items()
        )
        super().__init__(
            f"Unknown parameter{plural}: {listed}.{hints} This server rejects fields it does not "
            "know, so that a typo or an unsupported option is never ignored in silence. Remove "
            f"the field{plural}, or start the server with --unknown-fields=ignore.",
            param=names[0],
        )


class UnsupportedParameterError(InvalidRequestError):
    """A known field that this server does not serve and that would change the result."""

    default_code = "unsupported_parameter"


class UnsupportedValueError(InvalidRequestError):
    """A known field at a value that this server does not serve."""

    default_code = "unsupported_value"


class ContextLengthError(InvalidRequestError):
    """The prompt and the completion do not fit in the context.

    The sentence is the one by which clients recognise the case and shorten their history.

    Args:
        limit: Tokens the context holds.
        prompt: Tokens of the prompt, or the least it can have.
        completion: Tokens asked for beside it.
        exact: Whether `prompt` was counted; False if a lower bound was enough.
    """

    default_code = "context_length_exceeded"

    def __init__(
        self, *, limit: int, prompt: int, completion: int, param: str, exact: bool = True
    ) -> None:
        self.limit = limit
        self.prompt = prompt
        self.completion = completion
        self.is_exact = exact
        least = "" if exact else "at least "
        super().__init__(
            f"This model's maximum context length is {limit} tokens. However, you requested "
            f"{prompt + completion} tokens ({least}{prompt} in the prompt, {completion} for the "
            "completion). Please reduce the length of the messages or completion.",
            param=param,
        )


class AuthenticationError(InvalidRequestError):
    """The request carries no key, or none that is known."""

    status = 401
    default_code = "invalid_api_key"

    @property
    def headers(self) -> Mapping[str, str]:
        """How to send a key."""
        return {"WWW-Authenticate": "Bearer"}


class NotFoundError(InvalidRequestError):
    """No such path."""

    status = 404
    default_code = "not_found"


class ModelNotFoundError(NotFoundError):
    """The request names a model that is not served here."""

    default_code = "model_not_found"


class MethodNotAllowedError(InvalidRequestError):
    """The path exists, but not for this method."""

    status = 405
    default_code = "method_not_allowed"

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow

    @property
    def headers(self) -> Mapping[str, str]:
        """The methods that would work."""
        return {"Allow": self.allow}


class BodyTooLargeError(InvalidRequestError):
    """The body has more bytes than the server takes."""

    status = 413
    default_code = "body_too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"The request body is larger than the limit of {limit} bytes.")


class RequestReadTimeoutError(InvalidRequestError):
    """The request did not come in the time it was given.

    Args:
        what: What did not come.
        limit: Seconds it was given.
    """

    status = 408
    default_code = "request_read_timeout"

    def __init__(self, what: str, limit: float) -> None:
        super().__init__(f"The {what} of the request did not come within {limit:g} seconds.")


class UnsupportedMediaTypeError(InvalidRequestError):
    """A browser sends a body as a type that needs no preflight, so that any page could.

    Args:
        given: The type.
    """

    status = 415
    default_code = "unsupported_media_type"

    def __init__(self, given: str) -> None:
        super().__init__(
            "A request with an 'Origin' must have the content-type 'application/json' "
            f"(got '{given[:80]}')."
        )


class HeadersTooLargeError(InvalidRequestError):
    """The request line or the headers are longer than the server takes.

    Args:
        what: What there is too much of, with the limit.
    """

    status = 431
    default_code = "headers_too_large"

    def __init__(self, what: str) -> None:
        super().__init__(f"The request has {what}, which is the limit of this server.")


class OverloadedError(ApiError):
    """The queue is full.

    Args:
        retry_after: Whole seconds after which there may be room.
    """

    status = 429
    type = "rate_limit_error"
    default_code = "server_overloaded"

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after

    @property
    def headers(self) -> Mapping[str, str]:
        """When to come back."""
        return {"Retry-After": str(self.retry_after)}


class EngineUnavailableError(ApiError):
    """The engine cannot take the request or cannot finish it."""

    status = 503
    default_code = "engine_unavailable"


class InternalError(ApiError):
    """A fault of the server."""

    default_code = "internal_error"


class RequestTimeoutError(ApiError):
    """The request took longer than the server allows.

    Args:
        limit: Seconds it was given.
    """

    status = 504
    default_code = "request_timeout"

    def __init__(self, limit: float) -> None:
        super().__init__(
            f"The request was ended after the server's limit of {limit:g} seconds. Ask for fewer "
            "tokens, or start the server with a longer --request-timeout."
        )

    @property
    def headers(self) -> Mapping[str, str]:
        """Clients that retry by themselves would only wait as long again."""
        return {"X-Should-Retry": "false"}
