"""server.errors: statuses, codes and the sentences that clients look for."""

from __future__ import annotations

import json

import pytest

from server import errors


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (errors.InvalidRequestError("x"), 400, "invalid_request_error", None),
        (errors.ModelNotFoundError("x"), 404, "invalid_request_error", "model_not_found"),
        (errors.MethodNotAllowedError("x", allow="GET"), 405, "invalid_request_error", None),
        (errors.BodyTooLargeError(8), 413, "invalid_request_error", "body_too_large"),
        (errors.OverloadedError("x", retry_after=3), 429, "rate_limit_error", None),
        (errors.EngineUnavailableError("x"), 503, "server_error", "engine_unavailable"),
        (errors.InternalError("x"), 500, "server_error", "internal_error"),
    ],
)
def test_error_carries_its_status_and_shape(error, status, kind, code):
    """Every error has the one shape, and its code is a string or null."""
    body = json.loads(json.dumps(error.body()))["error"]
    assert error.status == status
    assert body.keys() == {"message", "type", "param", "code"}
    assert body["type"] == kind
    assert code is None or body["code"] == code
    assert body["code"] is None or isinstance(body["code"], str)


def test_context_length_has_the_sentence_clients_look_for():
    """Clients recognise an overflow by this sentence and by the code."""
    error = errors.ContextLengthError(limit=128, prompt=100, completion=50, param="prompt")
    assert error.message.startswith(
        "This model's maximum context length is 128 tokens. However, you requested 150 tokens ("
    )
    assert error.message.endswith("). Please reduce the length of the messages or completion.")
    assert error.code == "context_length_exceeded"


def test_unknown_parameters_are_all_named_with_a_guess():
    """A client learns all its typos at once."""
    error = errors.UnknownParameterError(["min_pp", "foo"], {"min_pp": "min_p"})
    assert error.message.startswith(
        "Unknown parameters: 'min_pp', 'foo'. Did you mean 'min_p' instead of 'min_pp'?"
    )
    assert (error.param, error.code) == ("min_pp", "unknown_parameter")


def test_of_very_many_unknown_parameters_the_first_are_named():
    """The message stays one that a person can read."""
    error = errors.UnknownParameterError([f"p{number}" for number in range(5000)], {})
    assert "'p0', 'p1', " in error.message
    assert "and 4900 more." in error.message
    assert len(error.message) < 2000


def test_headers_say_what_to_do():
    """A full queue says when to return, a wrong method which one works."""
    assert errors.OverloadedError("x", retry_after=7).headers == {"Retry-After": "7"}
    assert errors.MethodNotAllowedError("x", allow="POST").headers == {"Allow": "POST"}
