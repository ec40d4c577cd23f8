"""The timelines of requests in the Trace Event Format, which Perfetto and chrome://tracing open.

Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
Each request is a row of slices: its wait, then its steps; beside it a counter of its tokens in
the cache. Writes no text of requests, only their ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from server.observability.timeline import Event, EventKind, RequestHistory

_PROCESS = 1
_STEPS = {EventKind.PROMPT_CHUNK, EventKind.DECODE, EventKind.RECOMPUTE}
_WAITS = {EventKind.QUEUED, EventKind.PREEMPTED}


def chrome_trace(histories: Iterable[RequestHistory]) -> dict[str, object]:
    """One trace of these requests; times are microseconds of the monotonic clock."""
    process = {"name": "process_name", "ph": "M", "pid": _PROCESS, "args": {"name": "kvserve"}}
    events: list[dict[str, object]] = [process]
    for history in histories:
        events.append(
            {
                "name": "thread_name",
                "ph": "M",
                "pid": _PROCESS,
                "tid": history.record.serial,
                "args": {"name": history.record.request_id},
            }
        )
        events += _request_events(history)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _request_events(history: RequestHistory) -> Iterator[dict[str, object]]:
    row = history.record.serial
    counter = f"tokens in the cache, {history.record.request_id}"
    waiting_since: float | None = None
    for event in history.events:
        common = {"pid": _PROCESS, "tid": row, "ts": _microseconds(event.time)}
        if event.kind in _STEPS:
            yield {**common, **_slice(event)}
            end = _microseconds(event.time + event.seconds)
            tokens = {"tokens": event.num_cache_tokens}
            yield {**common, "name": counter, "ph": "C", "ts": end, "args": tokens}
            continue
        if event.kind is EventKind.ADMITTED and waiting_since is not None:
            begin = _microseconds(waiting_since)
            length = round(common["ts"] - begin, 3)
            yield {
                **common, "name": "waiting", "cat": "wait", "ph": "X", "ts": begin, "dur": length,
            }  # fmt: skip
        waiting_since = event.time if event.kind in _WAITS else None
        yield {**common, "name": event.kind.name.lower(), "cat": "state", "ph": "i", "s": "t"}
        if event.kind in {EventKind.PREEMPTED, EventKind.FINISHED}:
            yield {**common, "name": counter, "ph": "C", "args": {"tokens": 0}}


def _slice(event: Event) -> dict[str, object]:
    return {
        "name": event.kind.name.lower(),
        "cat": "step",
        "ph": "X",
        "dur": _microseconds(event.seconds),
        "args": {
            "start": event.start,
            "num_tokens": event.count,
            "batch_size": event.batch_size,
            "batch_tokens": event.batch_tokens,
            "num_cache_tokens": event.num_cache_tokens,
        },
    }


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
