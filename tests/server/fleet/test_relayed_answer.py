"""server.fleet.relayed_answer: a client gets every part of an answer once, whoever gives it."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.types import Message

from server.api.transport.wire import KEEP_ALIVE
from server.errors import EngineUnavailableError
from server.fleet.journal import NotContinuableError, Opened, ReplicaLostError
from server.fleet.relayed_answer import RelayedAnswer
from server.request import RequestOutput

START: Message = {"type": "http.response.start", "status": 200, "headers": []}
END: Message = {"type": "http.response.body", "body": b""}


def part(text: bytes) -> Message:
    return {"type": "http.response.body", "body": text, "more_body": True}


class Client:
    """Whoever an answer is sent to."""

    def __init__(self, path: str = "/v1/completions") -> None:
        self.messages: list[Message] = []
        self.answer = RelayedAnswer(self.send, path)

    async def send(self, message: Message) -> None:
        self.messages.append(message)

    def take(self, *steps: object) -> None:
        asyncio.run(self.answer.take(steps))

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)


@pytest.mark.parametrize("sent", [0, 1, 2, 3])
def test_what_the_client_has_is_not_sent_again(sent):
    """An answer that is said again is passed on from the first part that was not sent."""
    parts = [part(b"a"), part(b"bb"), part(b"ccc")]
    client = Client()
    client.take(Opened("one", "f"), START, *parts[:sent])
    client.answer.begin_anew()
    client.take(Opened("two", "f"), START, *parts, END)
    assert client.body == b"abbccc"
    assert client.messages.count(START) == 1
    assert client.answer.is_complete
    assert client.answer.replicas == ["one", "two"]


def test_comments_are_no_parts():
    """What a replica says in a silence is passed on and never counted."""
    client = Client()
    client.take(START, part(KEEP_ALIVE), part(b"a"), part(KEEP_ALIVE))
    client.answer.begin_anew()
    client.take(START, part(b"a"), part(KEEP_ALIVE), part(b"b"), END)
    assert client.body.replace(KEEP_ALIVE, b"") == b"ab"


@pytest.mark.parametrize("second", [(b"a", b"x", b"c"), (b"ab", b"", b"c")])
def test_another_answer_is_not_gone_on_with(second):
    """Nothing follows a part that differs by a byte, or is divided elsewhere."""
    client = Client()
    client.take(START, part(b"a"), part(b"b"))
    client.answer.begin_anew()
    with pytest.raises(NotContinuableError):
        client.take(START, *map(part, second), END)
    assert client.body == b"ab"


def test_a_shorter_answer_is_not_gone_on_with():
    """One that ends before what the client has is another answer."""
    client = Client()
    client.take(START, part(b"a"), part(b"b"))
    client.answer.begin_anew()
    with pytest.raises(NotContinuableError):
        client.take(START, part(b"a"), END)


def test_a_refusal_in_the_middle_is_a_loss():
    """A replica that answers 503 where another began with 200 is one to leave."""
    client = Client()
    client.take(START, part(b"a"))
    client.answer.begin_anew()
    with pytest.raises(ReplicaLostError):
        client.take({**START, "status": 503})


def test_the_journal_keeps_the_first_fingerprint():
    """Who goes on must compute what the first computed; outputs are kept in order."""
    outputs = [RequestOutput("r", "a", (1,)), RequestOutput("r", "b", (2,))]
    client = Client()
    client.take(Opened("one", "f"), outputs[0])
    client.answer.begin_anew()
    client.take(Opened("two", "g"), outputs[1])
    assert client.answer.journal.fingerprint == "f"
    assert client.answer.journal.outputs == outputs


def test_an_unread_answer_may_begin_anew_elsewhere():
    """As long as the client has nothing, anybody may compute it from its beginning."""
    client = Client()
    client.take(Opened("one", "f"), RequestOutput("r", "a", (1,)))
    client.answer.forget()
    assert client.answer.journal.outputs == []
    client.take(START, part(b"a"))
    with pytest.raises(NotContinuableError):
        client.answer.forget()


@pytest.mark.parametrize(
    ("path", "begin"),
    [
        ("/v1/chat/completions", b'data: {"error"'),
        ("/v1/messages", b"event: error\ndata: "),
        ("/v1/responses", b"event: error\ndata: "),
    ],
)
def test_a_stream_that_cannot_go_on_ends_with_one_error(path, begin):
    """The error stands in the form that the path's clients read, and is the last event."""
    client = Client(path)
    client.take(START, part(b"data: x\n\n"))
    asyncio.run(client.answer.fail(EngineUnavailableError("It is gone.")))
    event = client.body.removeprefix(b"data: x\n\n")
    assert event.startswith(begin)
    assert event.count(b"\n\n") == 1
    assert "It is gone." in json.dumps(json.loads(event.partition(b"data: ")[2]))
    assert not client.messages[-1].get("more_body", False)


def test_an_answer_that_has_not_begun_fails_with_a_status():
    """A client that has read nothing gets a plain error."""
    client = Client()
    asyncio.run(client.answer.fail(EngineUnavailableError("It is gone.")))
    assert client.messages[0]["status"] == 503
    assert json.loads(client.body)["error"]["message"] == "It is gone."
