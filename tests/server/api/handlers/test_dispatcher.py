"""server.api.handlers.dispatcher: from a request's bytes to a checked body, and to a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator

import pytest
from fakes import FakeEngine
from starlette.requests import Request

from server.api.fields.fields import Endpoint
from server.api.handlers.admission import Admission
from server.api.handlers.dispatcher import IGNORED_HEADER, Asked, Dispatcher, json_answer
from server.api.observability.metrics import Metrics
from server.api.schemas.requests import CompletionBody
from server.api.transport.workers import Workers
from server.config import ServerConfig
from server.engine_status import EngineStatus
from server.errors import ApiError, BodyTooLargeError, EngineUnavailableError, InternalError


def dispatcher(status: EngineStatus = EngineStatus.READY, **options: object) -> Dispatcher:
    engine = FakeEngine()
    engine.status = status
    config = ServerConfig(**options)
    return Dispatcher(engine, config, Metrics(engine), workers=Workers(4))


def request_of(body: dict[str, object]) -> Request:
    """A request with this body, whose client stays."""
    raw, sent = json.dumps(body).encode(), []

    async def receive() -> dict[str, object]:
        if sent:
            await asyncio.Event().wait()
        sent.append(raw)
        return {"type": "http.request", "body": raw, "more_body": False}

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


def read(handler: Dispatcher, body: dict[str, object], **limits: int) -> Asked[CompletionBody]:
    request = request_of({"prompt": "a", **body})
    return asyncio.run(handler.read(request, CompletionBody, Endpoint.COMPLETIONS, **limits))


def test_a_body_comes_back_checked_with_what_was_ignored():
    """Defaults are filled in, and harmless fields are named and counted."""
    handler = dispatcher()
    asked = read(handler, {"user": "me", "temperature": 0})
    assert (asked.body.prompt, asked.body.temperature, asked.body.n) == ("a", 0, 1)
    assert asked.ignored == ("user",)
    assert handler._metrics.num_ignored_fields == 1


def test_a_limit_may_stand_in_for_the_servers():
    """A body above it is refused, and one below is read."""
    handler = dispatcher()
    assert read(handler, {}, max_bytes=100).body.prompt == "a"
    with pytest.raises(BodyTooLargeError, match="100"):
        read(handler, {"user": "x" * 100}, max_bytes=100)


@pytest.mark.parametrize("status", [EngineStatus.LOADING, EngineStatus.DRAINING, EngineStatus.DEAD])
def test_nothing_is_read_while_no_request_is_taken(status):
    """The refusal comes before the body, which may be long."""
    handler = dispatcher(status)

    async def never() -> dict[str, object]:
        raise AssertionError("the body was read")

    request = Request({"type": "http", "method": "POST", "headers": []}, never)
    with pytest.raises(EngineUnavailableError):
        asyncio.run(handler.read(request, CompletionBody, Endpoint.COMPLETIONS))


@pytest.mark.parametrize("fails", [False, True])
def test_a_stream_keeps_its_ticket_until_it_ends(fails):
    """A failure before the first event gives the place back; a stream that began keeps it."""
    handler, admission = dispatcher(), Admission(1)

    async def parts() -> AsyncGenerator[bytes, None]:
        if fails:
            raise InternalError("before the first event")
        yield b"data: 1\n\n"

    async def scenario() -> int:
        asked = Asked(body=None, ignored=("user",), pool=Workers(1).writing)
        request = request_of({})
        await request.body()
        try:
            with admission.enter(1).kept() as ticket:
                answer = await handler.stream(request, asked, parts(), ticket=ticket)
        except ApiError:
            return admission.num_open
        assert answer.headers[IGNORED_HEADER] == "user"
        return admission.num_open

    assert asyncio.run(scenario()) == (0 if fails else 1)


def test_the_names_of_ignored_fields_fit_a_header():
    """However many they are and whatever is in them, the header is short and one line."""
    names = tuple(f"messages[].field{number}\r\nX-Evil: {number}" for number in range(1000))
    header = json_answer(b"{}", names).headers[IGNORED_HEADER]
    assert len(header) <= 1000
    assert "\n" not in header
    assert header.startswith("messages[].field0")
