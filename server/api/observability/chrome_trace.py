"""The timelines of requests in the Trace Event Format, which Perfetto and chrome://tracing open.

Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
Each request is a row of slices: its waits and its steps; beside it a counter of its tokens in
the cache. Writes no text of requests, only their ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from server.engine.timeline import Event, EventKind, RequestHistory

_PROCESS = 1
_STEPS = {EventKind.PROMPT_CHUNK, EventKind.DECODE, EventKind.RECOMPUTE}
_WAITS = {EventKind.QUEUED, EventKind.PREEMPTED}


def chrome_trace(histories: Iterable[RequestHistory]) -> dict[str, object]:
    """One trace of these requests; times are microseconds since the first thing that happened.

    They do not count from the start of the machine: after some months of that a number in JSON no
    longer holds nanoseconds, slices overlap by a few, and Perfetto drops those that do.
    """
    histories = tuple(histories)
    origin = min((event.time for history in histories for event in history.events), default=0.0)
    process = {"name": "process_name", "ph": "M", "pid": _PROCESS, "args": {"name": "kvserve"}}
    events: list[dict[str, object]] = [process]
    for history in histories:
        row = _Row(history.record.serial, history.record.request_id, origin)
        events.append(row.event("thread_name", "M", args={"name": row.request_id}))
        events += _request_events(history, row)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


@dataclass(frozen=True, slots=True)
class _Row:
    """Where the events of a request stand."""

    serial: int
    request_id: str
    origin: float

    def nanoseconds(self, moment: float) -> int:
        return round((moment - self.origin) * 1e9)

    def event(self, name: str, phase: str, **more: object) -> dict[str, object]:
        return {"name": name, "ph": phase, "pid": _PROCESS, "tid": self.serial, **more}

    def slice(
        self, name: str, category: str, *, begin: int, end: int, **more: object
    ) -> dict[str, object]:
        times = {"ts": begin / 1000, "dur": (end - begin) / 1000}
        return self.event(name, "X", cat=category, **times, **more)

    def counter(self, tokens: int, *, at: int) -> dict[str, object]:
        name = f"tokens in the cache, {self.request_id}"
        return self.event(name, "C", ts=at / 1000, args={"tokens": tokens})


def _request_events(history: RequestHistory, row: _Row) -> Iterator[dict[str, object]]:
    """What happened to a request; slices of a row follow each other and never overlap."""
    free_from = 0
    waiting_since: int | None = None
    for event in history.events:
        at = row.nanoseconds(event.time)
        name = event.kind.name.lower()
        if event.kind in _STEPS:
            begin = max(at, free_from)
            free_from = max(begin, row.nanoseconds(event.time + event.seconds))
            yield row.slice(name, "step", begin=begin, end=free_from, args=_arguments(event))
            yield row.counter(event.num_cache_tokens, at=free_from)
            continue
        if event.kind is EventKind.DRAFT:
            arguments = {"start": event.start, "num_tokens": event.count}
            yield row.event(name, "i", cat="state", s="t", ts=at / 1000, args=arguments)
            continue
        free_from = max(free_from, at)
        if waiting_since is not None:
            yield row.slice("waiting", "wait", begin=waiting_since, end=free_from)
        waiting_since = free_from if event.kind in _WAITS else None
        yield row.event(name, "i", cat="state", s="t", ts=at / 1000)
        if event.kind is not EventKind.QUEUED:
            tokens = event.start if event.kind is EventKind.ADMITTED else 0
            yield row.counter(tokens, at=at)
    if waiting_since is not None:
        yield row.event("waiting", "B", cat="wait", ts=waiting_since / 1000)


def _arguments(event: Event) -> dict[str, int]:
    """The numbers of a step."""
    return {
        "start": event.start,
        "num_tokens": event.count,
        "batch_size": event.batch_size,
        "batch_tokens": event.batch_tokens,
        "num_cache_tokens": event.num_cache_tokens,
    }
