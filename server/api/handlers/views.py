"""Views of the server at work: /kv, /kv/stream, /requests and their timelines.

They show ids, counts and times, never text or tokens. They ask the engine for frozen snapshots
and read its timeline; nothing here changes anything, however many people watch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from server.api.observability.chrome_trace import chrome_trace
from server.api.protocols import EngineClient
from server.api.transport.event_stream import EventStream, KeepAlive, begin
from server.api.transport.exchange import names_of
from server.api.transport.wire import encode, encode_patiently
from server.api.transport.workers import Workers
from server.engine.cache_snapshot import CacheSnapshot, describe
from server.engine.timeline import (
    MAX_FINISHED,
    Event,
    EventKind,
    RequestHistory,
    RequestRecord,
)
from server.errors import InvalidRequestError, NotFoundError

FRAME_SECONDS = 0.1
"""Time between two frames of the stream, at least."""
_MAX_SHARE = 0.05
"""Of the time that may be spent on making frames."""
_JSON = "application/json"
_FORMATS = ("json", "chrome")


@dataclass(frozen=True, slots=True)
class Frame:
    """A snapshot as JSON."""

    version: int
    raw: bytes


class Views:
    """The handlers of these routes.

    Args:
        engine: What is watched.
        keep_alive: Seconds of silence after which a stream carries a comment.
        workers: Do what takes long.
    """

    def __init__(self, engine: EngineClient, *, keep_alive: float, workers: Workers) -> None:
        self._engine = engine
        self._writing = workers.writing
        self._keep_alive = KeepAlive(keep_alive)
        self._pending: asyncio.Task[Frame] | None = None
        self._fresh_until = 0.0

    async def kv(self) -> Response:
        """Every region of the cache now."""
        snapshot = await self._engine.cache_snapshot()
        return Response(await self._writing.run(lambda: _encode(snapshot)), media_type=_JSON)

    async def kv_stream(self, request: Request) -> Response:
        """The same as server-sent events, whenever something has changed."""
        frames = self._frames()
        first = await begin(request.receive, frames, patience=self._keep_alive.interval)
        return EventStream(
            first, frames, headers={}, keep_alive=self._keep_alive, on_end=lambda: None
        )

    async def requests(self) -> Response:
        """All requests that have not ended and those that ended last, the newest first."""
        timeline = self._engine.timeline
        described = [
            _describe_request(record, timeline.wall_clock_offset) for record in timeline.records()
        ]
        return _json({"object": "list", "data": described[::-1]})

    async def timeline(self, request: Request) -> Response:
        """What one request, or each choice of one call, waited for and did."""
        wanted = request.query_params.get("format", "json")
        if wanted not in _FORMATS:
            raise InvalidRequestError(
                f"'format' must be one of {', '.join(_FORMATS)} (got '{wanted[:80]}').",
                param="format",
            )
        request_id = str(request.path_params["request_id"])
        raw = await self._writing.run(lambda: encode_patiently(self._timeline(request_id, wanted)))
        return Response(raw, media_type=_JSON)

    def _timeline(self, request_id: str, form: str) -> dict[str, object]:
        """The histories that go by a name, which may be of many thousand steps: takes its time."""
        histories = self._histories(request_id)
        if form == "chrome":
            return chrome_trace(histories)
        offset = self._engine.timeline.wall_clock_offset
        described = [_describe_history(history, offset) for history in histories]
        return {"object": "timeline", "data": described}

    def _histories(self, request_id: str) -> list[RequestHistory]:
        """Of a request, or all choices of a call or of what the client named so in x-request-id.

        Raises:
            NotFoundError: There is none, or none any more.
        """
        timeline = self._engine.timeline
        ids = [record.request_id for record in timeline.records()]
        wanted = [id_ for id_ in ids if request_id in names_of(id_)]
        found = [history for id_ in wanted if (history := timeline.history(id_)) is not None]
        if not found:
            raise NotFoundError(
                f"There is no request '{request_id[:200]}' among those that run and the "
                f"{MAX_FINISHED} that ended last."
            )
        return found

    async def _frames(self) -> AsyncGenerator[bytes, None]:
        """Frames as events, one for each version seen."""
        seen = -1
        while True:
            frame = await self._latest()
            if frame.version != seen:
                seen = frame.version
                yield b"data: " + frame.raw + b"\n\n"
            await asyncio.sleep(max(FRAME_SECONDS, self._fresh_until - time.monotonic()))

    async def _latest(self) -> Frame:
        """A frame of the last moment, made once for all who watch."""
        if self._pending is None or (
            self._pending.done() and time.monotonic() >= self._fresh_until
        ):
            self._pending = asyncio.ensure_future(self._make_frame())
        return await asyncio.shield(self._pending)

    async def _make_frame(self) -> Frame:
        self._fresh_until = 0.0
        snapshot = await self._engine.cache_snapshot()
        started = time.monotonic()
        frame = Frame(snapshot.version, await self._writing.run(lambda: _encode(snapshot)))
        ended = time.monotonic()
        self._fresh_until = ended + max(FRAME_SECONDS / 2, (ended - started) / _MAX_SHARE)
        return frame


def _encode(snapshot: CacheSnapshot) -> bytes:
    """A snapshot as JSON; takes its time when there are many blocks."""
    return encode(describe(snapshot))


def _json(body: dict[str, object]) -> Response:
    return Response(encode(body), media_type=_JSON)


def _describe_request(record: RequestRecord, wall_clock_offset: float) -> dict[str, object]:
    """A request's summary; times in seconds since it arrived."""
    return {
        "request_id": record.request_id,
        "status": record.status.value,
        "arrived": record.arrival_time + wall_clock_offset,
        "waited_seconds": _since(record, record.started_time),
        "first_token_seconds": _since(record, record.first_token_time),
        "finished_seconds": _since(record, record.finished_time),
        "finish_reason": record.finish_reason,
        "num_prompt_tokens": record.num_prompt_tokens,
        "num_cached_tokens": record.num_cached_tokens,
        "num_computed_tokens": record.num_computed_tokens,
        "num_output_tokens": record.num_output_tokens,
        "max_tokens": record.max_tokens,
        "num_preemptions": record.num_preemptions,
        "num_drafted_tokens": record.num_drafted_tokens,
        "num_accepted_tokens": record.num_accepted_tokens,
    }


def _describe_history(history: RequestHistory, wall_clock_offset: float) -> dict[str, object]:
    record = history.record
    return {
        **_describe_request(record, wall_clock_offset),
        "num_lost_events": history.num_lost_events,
        "events": [_describe_event(event, record) for event in history.events],
    }


def _describe_event(event: Event, record: RequestRecord) -> dict[str, object]:
    common: dict[str, object] = {
        "event": event.kind.name.lower(),
        "seconds": _since(record, event.time),
    }
    match event.kind:
        case EventKind.QUEUED:
            return common
        case EventKind.ADMITTED:
            return {**common, "num_cached_tokens": event.start, "num_reserved_tokens": event.count}
        case EventKind.PREEMPTED:
            return {**common, "num_lost_tokens": event.start}
        case EventKind.FINISHED:
            return {**common, "finish_reason": record.finish_reason}
        case EventKind.DRAFT:
            return {**common, "start": event.start, "num_drafted_tokens": event.count}
    return {
        **common,
        "milliseconds": round(event.seconds * 1e3, 3),
        "start": event.start,
        "num_tokens": event.count,
        "num_cache_tokens": event.num_cache_tokens,
        "batch_size": event.batch_size,
        "batch_tokens": event.batch_tokens,
    }


def _since(record: RequestRecord, moment: float | None) -> float | None:
    return None if moment is None else round(moment - record.arrival_time, 6)
