"""server.fleet.front: one exchange, as many replicas as it takes, and one answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import httpx
import pytest

from server.errors import OverloadedError
from server.fleet import front as front_module
from server.fleet.fleet_config import FleetConfig
from server.fleet.fleet_front import front_application
from server.fleet.front import MAX_ATTEMPTS, Front
from server.fleet.journal import (
    ForwardedRequest,
    Journal,
    NotContinuableError,
    Opened,
    ReplicaLostError,
)
from server.request import RequestOutput

EVENTS = [b"data: one\n\n", b"data: two\n\n", b"data: [DONE]\n\n"]
START = {"type": "http.response.start", "status": 200, "headers": []}
OUTPUT = RequestOutput("r", "one", (1,))


def part(text: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text, "more_body": True}


class ScriptedReplicas:
    """Replicas that do one script after the other: steps to yield, and an error to raise."""

    def __init__(self, *scripts: Sequence[object], fingerprint: str | None = "f") -> None:
        self.scripts = list(scripts)
        self.fingerprint = fingerprint
        self.requests: list[ForwardedRequest] = []
        self.journals: list[Journal] = []
        self.blocks: list[Sequence[str]] = []

    async def answer(
        self, request: ForwardedRequest, *, journal: Journal, blocks: Sequence[str]
    ) -> AsyncGenerator[list[object], None]:
        self.requests.append(request)
        self.journals.append(Journal(fingerprint=journal.fingerprint, outputs=[*journal.outputs]))
        self.blocks.append(blocks)
        yield [Opened(f"replica-{len(self.requests)}", self.fingerprint)]
        for step in self.scripts.pop(0):
            if isinstance(step, Exception):
                raise step
            if step == "wait":
                await asyncio.Event().wait()
            yield [step]

    async def statuses(self) -> list[str]:
        return ["ready", "loading"]

    async def metrics(self) -> list[tuple[str, str]]:
        return []


WHOLE = [START, *map(part, EVENTS), {"type": "http.response.body", "body": b""}]
LOST = ReplicaLostError("gone")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    """Attempts follow each other at once."""
    monkeypatch.setattr(front_module, "_PAUSE_SECONDS", 0)


async def ask(
    replicas: ScriptedReplicas, path: str = "/v1/completions", **more: Any
) -> httpx.Response:
    config = FleetConfig(access_log=False, **more.pop("config", {}))
    app = front_application(Front(replicas, config), config)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://fleet") as client:
        return await client.post(path, **({"json": {"prompt": "p" * 600}} | more))


def test_a_lost_replica_is_not_seen():
    """The client reads the whole answer; the second replica is given the journal of the first."""
    replicas = ScriptedReplicas([START, OUTPUT, part(EVENTS[0]), LOST], WHOLE)
    answer = asyncio.run(ask(replicas))
    assert answer.content == b"".join(EVENTS)
    assert replicas.journals[1].outputs == [OUTPUT]
    assert replicas.journals[1].fingerprint == "f"
    assert len(replicas.blocks[0]) == 2
    first, second = replicas.requests
    assert (first.secret, first.began, first.body) == (second.secret, second.began, second.body)


def test_a_request_that_kills_replicas_ends():
    """After some replicas it is the request's own fault, and answered with 503."""
    answer = asyncio.run(ask(ScriptedReplicas(*[[LOST]] * MAX_ATTEMPTS)))
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "engine_unavailable"


def test_where_no_bits_are_promised_the_stream_ends_with_an_error():
    """What a GPU or torch has begun nobody continues: one event says so, and it is the last."""
    replicas = ScriptedReplicas([START, OUTPUT, part(EVENTS[0]), LOST], fingerprint=None)
    answer = asyncio.run(ask(replicas))
    assert answer.content.startswith(EVENTS[0])
    (event,) = answer.content.removeprefix(EVENTS[0]).split(b"\n\n")[:-1]
    error = json.loads(event.removeprefix(b"data: "))["error"]
    assert "no other replica promises" in error["message"]


def test_an_unread_answer_begins_anew_with_other_bits():
    """As long as the client has read nothing, any replica may compute it from its beginning."""
    other = NotContinuableError("other bits")
    replicas = ScriptedReplicas([OUTPUT, LOST], [other], WHOLE)
    answer = asyncio.run(ask(replicas))
    assert answer.content == b"".join(EVENTS)
    assert [len(journal.outputs) for journal in replicas.journals] == [0, 1, 0]


def test_a_refusal_of_the_replicas_is_the_answer():
    """What no replica takes is refused as it is, with the header that says when to return."""
    replicas = ScriptedReplicas([OverloadedError("busy", retry_after=3)])
    answer = asyncio.run(ask(replicas))
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")


def test_what_switches_things_off_does_not_pass():
    """Headers by which Ray lets clients switch protections off end at the front."""
    headers = {
        "X-Request-Disconnect-Disabled": "?1",
        "x-request-timeout-seconds": "1",
        "serve_multiplexed_model_id": "m",
        "X-Mine": "1",
        "X-Request-Id": "mine",
    }
    replicas = ScriptedReplicas(WHOLE)
    answer = asyncio.run(ask(replicas, headers=headers))
    passed = dict(replicas.requests[0].scope["headers"])
    assert passed[b"x-mine"] == b"1"
    assert passed[b"x-request-id"] == b"mine" == answer.headers["x-request-id"].encode()
    assert not any(b"disconnect" in name or b"timeout" in name for name in passed)
    assert b"serve_multiplexed_model_id" not in passed


def test_keys_are_asked_for_at_the_front():
    """Nobody without a key comes to a replica, and no key does."""
    replicas = ScriptedReplicas(WHOLE)
    config = {"api_key": "secret"}
    assert asyncio.run(ask(replicas, config=config)).status_code == 401
    assert replicas.requests == []
    answer = asyncio.run(ask(replicas, config=config, headers={"api-key": "secret"}))
    assert answer.status_code == 200


def test_large_bodies_are_refused_at_the_front():
    """The limit of a server is the fleet's."""
    answer = asyncio.run(ask(ScriptedReplicas(), config={"max_body_bytes": 10}))
    assert answer.status_code == 413


def test_a_drain_ends_what_does_not_end():
    """Streams that outlast the grace time end with one error event, new requests with 503."""

    async def drain() -> tuple[httpx.Response, httpx.Response]:
        replicas = ScriptedReplicas([START, part(EVENTS[0]), "wait"])
        config = FleetConfig(access_log=False)
        front = Front(replicas, config)
        transport = httpx.ASGITransport(front_application(front, config))
        async with httpx.AsyncClient(transport=transport, base_url="http://fleet") as client:
            asked = asyncio.create_task(client.post("/v1/completions", json={}))
            while not replicas.requests:
                await asyncio.sleep(0)
            await front.drain(0.05)
            return await asked, await client.post("/v1/completions", json={})

    ended, refused = asyncio.run(drain())
    assert b"The fleet is shutting down." in ended.content
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
