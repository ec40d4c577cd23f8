"""Exchange: what is known of the HTTP exchange that the running code belongs to.

The id under which the client and the logs know it, and facts for its line in the access log. It
travels with the context of the task, into threads and the tasks it starts, so that whoever makes
a call can name it without being handed anything. Belongs to the event loop.
"""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar
from dataclasses import dataclass, field

from server.api.transport.chance import Chance
from server.engine.timeline import RequestRecord

_GIVEN_ID = re.compile(r"[A-Za-z0-9._:=@+-]{1,128}")


@dataclass(slots=True)
class TraceFacts:
    """What the trace of an exchange is made of; there only if somebody traces it."""

    headers: dict[str, str] = field(default_factory=dict)
    """The trace's context, for whoever this exchange asks in turn."""
    attributes: dict[str, str | int | float | bool | list[str]] = field(default_factory=dict)
    """What was asked for."""
    records: list[RequestRecord] = field(default_factory=list)
    """Of the requests that the engine ran."""
    wall_clock_offset: float = 0.0
    """Seconds from the records' clock to Unix time."""

    def nanoseconds(self, time: float) -> int:
        """A time of the records as OpenTelemetry wants it."""
        return int((time + self.wall_clock_offset) * 1e9)


@dataclass(slots=True)
class Exchange:
    """One request over HTTP and its answer."""

    request_id: str
    facts: dict[str, object] = field(default_factory=dict)
    """Counts and words for the access log; never a text of a prompt or an answer."""
    chance: Chance = field(default_factory=Chance.new)
    """Where its ids and seeds come from, if its client gives none."""
    trace: TraceFacts | None = None


CURRENT: ContextVar[Exchange | None] = ContextVar("exchange", default=None)


def request_id(given: str | None) -> str:
    """The id of an exchange: the client's if it can stand in a log and a path, else a new one."""
    if given is not None and _GIVEN_ID.fullmatch(given):
        return given
    return secrets.token_hex(16)


def chance() -> Chance:
    """Where this exchange draws its ids and seeds; one of its own for code outside exchanges."""
    exchange = CURRENT.get()
    return Chance.new() if exchange is None else exchange.chance


def new_call_id(prefix: str) -> str:
    """An id for a call, with the exchange's in it; unique, even if clients repeat theirs.

    Args:
        prefix: What kind of call it is, such as "chatcmpl"; without a hyphen.
    """
    exchange = CURRENT.get()
    if exchange is None:
        return f"{prefix}-{secrets.token_hex(16)}"
    return f"{prefix}-{exchange.request_id}-{exchange.chance.token(4)}"


def names_of(engine_request_id: str) -> tuple[str, str, str]:
    """What an engine request "chatcmpl-<exchange>-1a2b3c4d-0" is known by, the widest last.

    Returns:
        Its own id, its call's, and its exchange's.
    """
    call_id = engine_request_id.rpartition("-")[0]
    return engine_request_id, call_id, call_id.partition("-")[2].rpartition("-")[0]
