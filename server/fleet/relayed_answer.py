"""RelayedAnswer: what a client has been sent of an answer, whichever replicas gave it.

A replica that goes on with an answer says it all again. Here what the client has is recognised,
part by part and to the byte, and only what follows is passed on. It never sends a part twice,
and nothing behind one that differs. Owned by one exchange of a front.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from starlette.types import Message, Send

from server.api.dialects.message_errors import message_error, speaks_messages
from server.api.dialects.message_writer import MessageWriter
from server.api.handlers.access import error_response
from server.api.transport.event_stream import error_event
from server.api.transport.wire import KEEP_ALIVE, event
from server.errors import ApiError
from server.fleet.journal import Journal, NotContinuableError, Opened, ReplicaLostError, Step
from server.request import RequestOutput

_COMMENTS = frozenset({KEEP_ALIVE, MessageWriter.keep_alive})
"""Parts that come when they like."""


class RelayedAnswer:
    """One answer on its way to its client.

    Args:
        send: The exchange's.
        path: What the client asked, for the shape of an error.
    """

    def __init__(self, send: Send, path: str) -> None:
        self._send = send
        self._path = path
        self._status = 0
        self._sent = blake2b()
        self._repeated = blake2b()
        self._num_sent = 0
        self._num_repeated = 0
        self.journal = Journal()
        """What a replica needs in order to go on."""
        self.replicas: list[str] = []
        """Who gave it, in turn."""
        self.is_complete = False

    @property
    def has_begun(self) -> bool:
        """Whether the client has been sent anything."""
        return self._status > 0

    def begin_anew(self) -> None:
        """Another replica will give the answer, from its beginning."""
        self._repeated = blake2b()
        self._num_repeated = 0

    def check_continuable(self) -> None:
        """Before a replica is asked: whether any can go on with what the client has.

        Raises:
            NotContinuableError: What it has was computed where no bits are promised.
        """
        if self.has_begun and self.journal.fingerprint is None:
            raise NotContinuableError("It computed bits that no other replica promises.")

    def forget(self) -> None:
        """Have it computed from its beginning too, as nobody can go on with it.

        Raises:
            NotContinuableError: The client has a part of it.
        """
        if self.has_begun:
            raise NotContinuableError("The client has a part of the answer.")
        self.journal = Journal()

    async def take(self, steps: Sequence[Step]) -> None:
        """Pass on what these steps bring.

        Raises:
            ReplicaLostError: The replica refuses what it was to go on with.
            NotContinuableError: It says something else than the client has read.
        """
        for step in steps:
            if isinstance(step, Opened):
                self.replicas.append(step.replica)
                if not self.journal.outputs:
                    self.journal.fingerprint = step.fingerprint
            elif isinstance(step, RequestOutput):
                self.journal.outputs.append(step)
            elif step["type"] == "http.response.start":
                await self._start(step)
            elif step["type"] == "http.response.body":
                await self._pass(step)

    async def fail(self, error: ApiError) -> None:
        """End it with an error: a whole answer, or the last event of a stream."""
        if not self.has_begun:
            response = error_response(error, self._path)
            start = {"status": response.status_code, "headers": response.raw_headers}
            await self._send({"type": "http.response.start", **start})
            await self._send({"type": "http.response.body", "body": response.body})
        elif not self.is_complete:
            body = self._failure(error)
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
            await self._send({"type": "http.response.body", "body": b""})
        self.is_complete = True

    def _failure(self, error: ApiError) -> bytes:
        """The event that ends a stream of this form."""
        if speaks_messages(self._path):
            return b"event: error\n" + event(message_error(error))
        if self._path == "/v1/responses":
            shape = {"type": "error", "code": error.code, "message": error.message,
                     "param": error.param, "sequence_number": self._num_sent}  # fmt: skip
            return b"event: error\n" + event(shape)
        return error_event(error)

    async def _start(self, message: Message) -> None:
        if not self.has_begun:
            self._status = message["status"]
            await self._send(message)
        elif message["status"] != self._status:
            raise ReplicaLostError(f"A replica answered {message['status']} in the middle.")

    async def _pass(self, message: Message) -> None:
        """Pass a part on, unless the client has it."""
        part = message.get("body", b"")
        if part in _COMMENTS:
            await self._send(message)
            return
        is_last = not message.get("more_body", False)
        if self._num_repeated < self._num_sent:
            self._recognise(part, is_last=is_last)
            return
        self._sent.update(_framed(part))
        self._num_sent += 1
        self._num_repeated = self._num_sent
        self.is_complete = is_last
        await self._send(message)

    def _recognise(self, part: bytes, *, is_last: bool) -> None:
        """Check that a part is the one that was sent; that is known when all have come."""
        self._repeated.update(_framed(part))
        self._num_repeated += 1
        caught_up = self._num_repeated == self._num_sent
        differs = caught_up and self._repeated.digest() != self._sent.digest()
        if is_last or differs:
            raise NotContinuableError("A replica went on with another answer.")


def _framed(part: bytes) -> bytes:
    """A part with its length, so that a division elsewhere is another text."""
    return len(part).to_bytes(8, "little") + part
