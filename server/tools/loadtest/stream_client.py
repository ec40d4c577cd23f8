"""StreamClient: sends one request, and says when each part of its answer arrived.

Speaks to any server of the OpenAI API. A request is sent when its bytes are handed to the socket,
over a connection that is open already if there is one; a part of the answer has arrived when its
bytes are there, before anything is parsed. Times are those of the event loop's clock. Measures and
never judges: a failed request is a record with an error, not an exception.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Literal

from server.tools.loadtest.http_client import HttpClient
from server.tools.loadtest.http_connection import ExchangeError
from server.tools.loadtest.workload import Prompt

EndpointName = Literal["completions", "chat"]
_PATHS: Mapping[EndpointName, str] = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
}
_DATA = b"data:"
_DONE = b"[DONE]"


@dataclass(kw_only=True, slots=True)
class StreamRecord:
    """Timing and outcome of one request; times are seconds on the loop's clock."""

    intended: float | None = None
    """When it was meant to be sent, if that was not left to the answers of others."""
    sent: float = 0.0
    """When its bytes were handed to the socket, the last time if that was twice."""
    num_sendings: int = 0
    """2 if the server had closed the kept connection that it was sent over first."""
    arrivals: list[float] = field(default_factory=list)
    """When each part of the text arrived; usually a token each."""
    ended: float = 0.0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    """As the server counts; None if it does not say."""
    error: str | None = None
    """What kind of failure it was."""
    detail: str = ""
    """The failure's own words."""

    @property
    def output_tokens(self) -> int:
        """Tokens of the answer; the parts that came, if the server does not count."""
        return len(self.arrivals) if self.completion_tokens is None else self.completion_tokens

    @property
    def start(self) -> float:
        """When its latencies begin: when it was meant to be sent, or else when it was."""
        return self.sent if self.intended is None else self.intended

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.arrivals[0] - self.start

    @property
    def latency(self) -> float:
        """Seconds to the last token."""
        return self.arrivals[-1] - self.start

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first; None if there is only one."""
        if self.output_tokens < 2:
            return None
        return (self.arrivals[-1] - self.arrivals[0]) / (self.output_tokens - 1)

    @property
    def gaps(self) -> list[float]:
        """Seconds between parts that follow one another."""
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]

    def fail(self, kind: str, detail: str) -> None:
        """Record that it failed, and how."""
        self.error, self.detail = kind, " ".join(detail.split())[:200]


class StreamClient:
    """Requests to one server.

    Args:
        http: Carries them.
        model: Named in each request.
        endpoint: Which of the two forms.
        options: Further fields of each request.
    """

    def __init__(
        self,
        http: HttpClient,
        *,
        model: str,
        endpoint: EndpointName,
        options: Mapping[str, object],
    ) -> None:
        self._http = http
        self._path = _PATHS[endpoint]
        self._chat = endpoint == "chat"
        self._fixed = {
            "model": model,
            "stream": True,
            "stream_options": {"include_usage": True},
            **options,
        }

    async def connect(self, count: int) -> None:
        """Open connections ahead, as far as the server takes them."""
        with suppress(ExchangeError):  # what needs one will say so
            await self._http.open(count)

    def body(self, prompt: Prompt) -> bytes:
        """What is sent for a prompt."""
        question: dict[str, object] = (
            {"messages": prompt.messages} if self._chat else {"prompt": prompt.text}
        )
        return json.dumps({**self._fixed, **question, "max_tokens": prompt.max_tokens}).encode()

    async def send(self, body: bytes, record: StreamRecord) -> None:
        """Send a request and fill in its record."""
        clock = asyncio.get_running_loop().time
        record.sent = clock()
        stream = _Stream(record)
        try:
            await self._http.post(self._path, body, stream)
            stream.end()
        except ExchangeError as error:
            record.fail(error.kind, str(error))
        record.ended = clock()


class _Stream:
    """Enters what is told of an answer in a record.

    Args:
        record: Of the request.
    """

    def __init__(self, record: StreamRecord) -> None:
        self._record = record
        self._status = 0
        self._rest = b""
        self._is_done = False

    def on_sent(self, now: float) -> None:
        self._record.sent = now
        self._record.num_sendings += 1

    def on_status(self, status: int) -> None:
        self._status = status

    def on_data(self, data: bytes, now: float) -> None:
        """Note when bytes with text in them arrived."""
        self._rest += data
        if self._status != HTTPStatus.OK:
            return
        *lines, self._rest = self._rest.split(b"\n")
        for event in _data(lines):
            if event == _DONE:
                self._is_done = True
            elif self._record.error is None:
                _take(event, self._record, now)

    def end(self) -> None:
        """The answer is whole: judge what it was."""
        if self._status != HTTPStatus.OK:
            self._record.fail(f"HTTP {self._status}", self._rest.decode(errors="replace"))
        elif self._record.error is not None:
            pass
        elif not self._is_done:
            self._record.fail("stream cut off", "it ended without [DONE]")
        elif not self._record.arrivals:
            self._record.fail("empty answer", "the stream ended without a token")


def _data(lines: list[bytes]) -> Iterator[bytes]:
    """What the events carry; comments and other fields are passed over."""
    return (line.removeprefix(_DATA).strip() for line in lines if line.startswith(_DATA))


def _take(data: bytes, record: StreamRecord, now: float) -> None:
    """Enter one event in the record."""
    try:
        event = json.loads(data)
        if "error" in event:
            record.fail("error event", json.dumps(event["error"]))
            return
        if any(_has_text(choice) for choice in event["choices"]):
            record.arrivals.append(now)
        usage = event.get("usage")
        if usage:
            record.prompt_tokens = usage["prompt_tokens"]
            record.completion_tokens = usage["completion_tokens"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        record.fail("malformed event", f"{type(error).__name__}: {data.decode(errors='replace')}")


def _has_text(choice: Mapping[str, object]) -> bool:
    """Whether an event's choice brings something of the answer, be it text, thought or a call."""
    delta = choice.get("delta")
    if isinstance(delta, Mapping):
        return any(delta.get(name) for name in ("content", "reasoning_content", "tool_calls"))
    return bool(choice.get("text"))
