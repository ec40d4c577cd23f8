"""StreamClient: sends one request, and says when each part of its answer arrived.

Speaks to any server of the OpenAI API. Times are those of the event loop's clock, taken when bytes
arrive and before anything is parsed. Measures and never judges: a failed request is a record with
an error, not an exception.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import httpx

from server.tools.workload import Prompt

Endpoint = Literal["completions", "chat"]
_PATHS: Mapping[Endpoint, str] = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
}
_DATA = b"data:"
_DONE = b"[DONE]"


@dataclass(kw_only=True, slots=True)
class RequestRecord:
    """What happened to one request; times are seconds on the loop's clock."""

    intended: float
    """When it was meant to be sent; latencies count from here."""
    sent: float = 0.0
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
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.arrivals[0] - self.intended

    @property
    def latency(self) -> float:
        """Seconds to the last token."""
        return self.arrivals[-1] - self.intended

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
        client: Its base URL is the server's.
        model: Named in each request.
        endpoint: Which of the two forms.
        options: Further fields of each request.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        *,
        model: str,
        endpoint: Endpoint,
        options: Mapping[str, object],
    ) -> None:
        self._client = client
        self._path = _PATHS[endpoint]
        self._chat = endpoint == "chat"
        self._fixed = {
            "model": model,
            "stream": True,
            "stream_options": {"include_usage": True},
            **options,
        }

    async def send(self, prompt: Prompt, record: RequestRecord) -> None:
        """Send a request and fill in its record."""
        clock = asyncio.get_running_loop().time
        body = self._body(prompt)
        record.sent = clock()
        try:
            async with self._client.stream("POST", self._path, content=body) as response:
                if response.status_code != httpx.codes.OK:
                    text = (await response.aread()).decode(errors="replace")
                    record.fail(f"HTTP {response.status_code}", text)
                else:
                    await _receive(response.aiter_raw(), record)
        except httpx.TimeoutException as error:
            record.fail("timeout", repr(error))
        except httpx.ConnectError as error:
            record.fail("connection refused", repr(error))
        except httpx.HTTPError as error:
            record.fail("connection lost", repr(error))
        record.ended = clock()
        if record.error is None and not record.arrivals:
            record.fail("empty answer", "the stream ended without a token")

    def _body(self, prompt: Prompt) -> bytes:
        question: dict[str, object] = (
            {"messages": prompt.messages} if self._chat else {"prompt": prompt.text}
        )
        return json.dumps({**self._fixed, **question, "max_tokens": prompt.max_tokens}).encode()


async def _receive(parts: AsyncIterator[bytes], record: RequestRecord) -> None:
    """Read a stream to its end, noting when bytes with text in them arrived."""
    clock = asyncio.get_running_loop().time
    rest = b""
    done = False
    async for part in parts:
        now = clock()
        *lines, rest = (rest + part).split(b"\n")
        for data in _data(lines):
            if data == _DONE:
                done = True
            elif record.error is None:
                _take(data, record, now)
    if record.error is None and not done:
        record.fail("stream cut off", "it ended without [DONE]")


def _data(lines: list[bytes]) -> Iterator[bytes]:
    """What the events carry; comments and other fields are passed over."""
    return (line.removeprefix(_DATA).strip() for line in lines if line.startswith(_DATA))


def _take(data: bytes, record: RequestRecord, now: float) -> None:
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
