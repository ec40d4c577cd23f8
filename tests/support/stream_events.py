"""Streams read event by event in threads, so that something may happen in their middle."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

_CHANGING = frozenset({"id", "created", "usage"})
"""What differs between two runs of one request: names, times, and what the cache held."""


@dataclass
class StreamedCall:
    """A request whose answer is being read."""

    url: str
    body: Mapping[str, Any]
    path: str = "/v1/completions"
    events: list[dict[str, Any]] = field(default_factory=list)
    status: int = 0
    error: str | None = None
    finished: bool = False

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        try:
            with httpx.stream(
                "POST", self.url + self.path, json=self.body | {"stream": True}, timeout=200
            ) as answer:
                self.status = answer.status_code
                for line in answer.iter_lines():
                    if line == "data: [DONE]":
                        self.finished = True
                    elif line.startswith("data: "):
                        self.events.append(json.loads(line.removeprefix("data: ")))
        except httpx.HTTPError as error:
            self.error = repr(error)

    def join(self) -> StreamedCall:
        """Wait for the end."""
        self.thread.join(240)
        assert not self.thread.is_alive(), "the stream did not end"
        return self

    @property
    def content(self) -> list[dict[str, Any]]:
        """All events without what may differ between runs, each choice's in their order."""
        return sorted(map(_constant, self.events), key=_choice)


def _choice(event: dict[str, Any]) -> int:
    """Whose event it is; how those of different choices alternate is nobody's business."""
    choices = event.get("choices") or [{}]
    return choices[0].get("index", 0)


def _constant(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _constant(part) for name, part in value.items() if name not in _CHANGING}
    if isinstance(value, list):
        return [_constant(part) for part in value]
    return value
