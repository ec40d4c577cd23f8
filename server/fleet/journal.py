"""What travels between a front and a replica: a request, the steps of its answer, what came before.

Plain data that can be pickled. A journal lists the engine's outputs of one exchange; with it and
the exchange's chance another replica writes the same answer and goes on with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Message

from server.errors import KvserveError
from server.request import RequestOutput

CONTENT = ("type", "method", "path", "raw_path", "query_string", "root_path", "scheme",
           "http_version", "headers", "client", "server")  # fmt: skip
"""What of an ASGI scope is data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardedRequest:
    """One HTTP request as a replica gets it."""

    scope: Mapping[str, Any]
    body: bytes
    secret: bytes
    """Of its Chance."""
    began: int
    """Unix time at which it came."""


@dataclass(kw_only=True, slots=True)
class Journal:
    """What the engine brought for one exchange so far."""

    fingerprint: str | None = None
    """Of the replica that brought it; None as long as nothing is here, or if nobody can go on."""
    outputs: list[RequestOutput] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Opened:
    """The first step of every answer: who gives it."""

    replica: str
    fingerprint: str | None


Step = Opened | RequestOutput | Message
"""Of an answer: an output always comes before the ASGI messages that it caused."""


class ReplicaLostError(KvserveError):
    """A replica cannot finish an answer; another one may."""


class NotContinuableError(KvserveError):
    """No replica that was found can go on with this answer."""
