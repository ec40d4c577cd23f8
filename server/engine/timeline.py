"""Timeline: what each request waited for and did, step by step, in memory of fixed size.

The engine thread writes, through `TimelineObserver`; anyone may read. An event is a few numbers
packed into a ring that was allocated at the start: nothing is formatted, and nothing allocated,
while the engine waits. When the ring comes round, the oldest events are lost, and a reader is
told how many. Requests are known by their id; no text and no token ever comes here.
"""

from __future__ import annotations

import enum
import struct
import time
from collections import deque
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from server.engine.planning.batch import Batch
from server.request import FinishReason, Request, RequestStatus

MAX_EVENTS = 1 << 17
"""Events that are kept, 40 bytes each."""
MAX_FINISHED = 512
"""Requests that are remembered after their end."""
STEP_SIZES = tuple(1 << power for power in range(15))
"""Steps are counted by the least of these that is not below their number of tokens."""
_PACKED = struct.Struct("=ddIIIIII")
_EVENT = np.dtype(
    [
        ("time", "f8"),
        ("seconds", "f8"),
        ("serial", "u4"),
        ("kind", "u4"),
        ("start", "u4"),
        ("count", "u4"),
        ("batch_size", "u4"),
        ("batch_tokens", "u4"),
    ]
)
assert _EVENT.itemsize == _PACKED.size, "one layout, written and read"


class EventKind(enum.IntEnum):
    """Kind of event in the life of a request; its lower-case name is shown."""

    QUEUED = 0
    ADMITTED = 1
    """It got its region: `start` tokens of it cached, room for `count`."""
    PROMPT_CHUNK = 2
    """`count` tokens of the prompt from `start` on were computed."""
    DECODE = 3
    """The token at `start` was computed and the next one chosen."""
    RECOMPUTE = 4
    """`count` tokens that were known already, after a preemption or for want of a cache."""
    PREEMPTED = 5
    """It lost its region, and `start` tokens in it."""
    FINISHED = 6
    DRAFT = 7
    """`count` tokens guessed to follow from `start` on were computed, in the step before it."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a request; see EventKind for `start` and `count`."""

    kind: EventKind
    time: float
    """When it began, on the monotonic clock."""
    seconds: float
    """How long it took: of a step all of it, from scheduling to sampling."""
    start: int
    count: int
    batch_size: int
    """Requests in the step."""
    batch_tokens: int
    """New tokens of all of them."""

    @property
    def num_cache_tokens(self) -> int:
        """Tokens of the request in the cache after a step."""
        return self.start + self.count


@dataclass(kw_only=True, slots=True)
class RequestRecord:
    """State of a request beside its events; times are on the monotonic clock."""

    request_id: str
    serial: int
    """The number under which the events know it."""
    first_event: int
    """Events recorded before its own."""
    arrival_time: float
    num_prompt_tokens: int
    max_tokens: int
    status: RequestStatus = RequestStatus.WAITING
    started_time: float | None = None
    """When it first got a region."""
    admitted_time: float | None = None
    """When it last got a region."""
    first_token_time: float | None = None
    finished_time: float | None = None
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    finish_reason: FinishReason | None = None
    num_events: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestHistory:
    """A request and its events in order."""

    record: RequestRecord
    events: tuple[Event, ...]

    @property
    def num_lost_events(self) -> int:
        """Events that the ring has overwritten; they are the oldest."""
        return self.record.num_events - len(self.events)


@dataclass(kw_only=True, slots=True)
class Totals:
    """Sums over all steps since the start, and the last step."""

    num_steps: int = 0
    num_computed_tokens: int = 0
    num_generated_tokens: int = 0
    num_prefix_queried_tokens: int = 0
    """Tokens that were looked for in the prefix index when requests were admitted."""
    num_prefix_hit_tokens: int = 0
    """Those that were found."""
    num_drafts: int = 0
    num_drafted_tokens: int = 0
    """Tokens that were guessed ahead and checked."""
    num_accepted_tokens: int = 0
    """Those of them that their requests then said."""
    last_step_seconds: float = 0.0
    last_batch_size: int = 0
    last_batch_tokens: int = 0


class Timeline:
    """Records events in a ring, and remembers open requests and those that ended last.

    Args:
        max_events: Size of the ring.
        max_finished: Requests remembered after their end.
    """

    def __init__(self, *, max_events: int = MAX_EVENTS, max_finished: int = MAX_FINISHED) -> None:
        self.wall_clock_offset = time.time() - time.monotonic()
        """Seconds from the monotonic clock to Unix time."""
        self.num_changes = 0
        """Rises with everything that happens: who has seen this number has seen it all."""
        self._totals = Totals()
        self._step_size_counts = [0] * (len(STEP_SIZES) + 1)
        self._max_events = max_events
        self._num_slots = max_events + 1  # the one being written is nobody's to read
        self._ring = bytearray(self._num_slots * _PACKED.size)
        self._events: NDArray[np.void] = np.frombuffer(self._ring, _EVENT)
        self._num_written = 0
        self._num_requests = 0
        self._records: dict[str, RequestRecord] = {}
        self._finished: deque[RequestRecord] = deque()
        self._max_finished = max_finished

    # Written by the engine thread.

    def queued(self, request: Request) -> None:
        """A request was handed to the engine."""
        self._num_requests += 1
        record = RequestRecord(
            request_id=request.request_id,
            serial=self._num_requests,
            first_event=self._num_written,
            arrival_time=request.arrival_time,
            num_prompt_tokens=request.num_prompt_tokens,
            max_tokens=request.params.max_tokens,
        )
        self._records[request.request_id] = record
        self._mark(record, EventKind.QUEUED, time=request.arrival_time)

    def admitted(self, request: Request, *, num_queried: int, time: float) -> None:
        """A request got its region, in which `num_queried` tokens could have been cached."""
        record = self._records[request.request_id]
        assert request.region is not None, "admission is getting a region"
        found = request.region.num_cached_tokens
        record.status = RequestStatus.RUNNING
        record.admitted_time = time
        if record.started_time is None:
            record.started_time = time
        record.num_cached_tokens = request.num_cached_tokens
        record.num_computed_tokens = found
        if num_queried:
            self._totals.num_prefix_queried_tokens += num_queried
            self._totals.num_prefix_hit_tokens += found
        self._mark(
            record, EventKind.ADMITTED, time=time, start=found, count=request.region.capacity
        )

    def preempted(self, request: Request, *, time: float) -> None:
        """A request lost its region."""
        record = self._records[request.request_id]
        record.status = RequestStatus.WAITING
        record.num_preemptions += 1
        lost, record.num_computed_tokens = record.num_computed_tokens, 0
        self._mark(record, EventKind.PREEMPTED, time=time, start=lost)

    def stepped(self, batch: Batch, *, started: float, ended: float) -> None:
        """A step was computed and its tokens are chosen."""
        batch_size, batch_tokens = len(batch.scheduled), sum(batch.query_lengths)
        totals = self._totals
        totals.num_steps += 1
        totals.num_computed_tokens += batch_tokens
        totals.last_step_seconds = ended - started
        totals.last_batch_size, totals.last_batch_tokens = batch_size, batch_tokens
        self._step_size_counts[min((batch_tokens - 1).bit_length(), len(STEP_SIZES))] += 1
        seconds, records, running = ended - started, self._records, RequestStatus.RUNNING
        for request, start, count, samples, draft in batch.scheduled:
            record = records.get(request.request_id)
            if record is None or record.status is not running:
                continue
            known = count - len(draft)
            record.num_computed_tokens = start + known
            kind = _kind(record, known, samples=samples)
            if samples:
                record.num_output_tokens += 1
                totals.num_generated_tokens += 1
                if record.first_token_time is None:
                    record.first_token_time = ended
            self._write(record, (started, seconds, record.serial, kind, start, known, batch_size,
                                 batch_tokens))  # fmt: skip
            if draft:
                self._write(record, (ended, 0.0, record.serial, EventKind.DRAFT, start + known,
                                     len(draft), batch_size, batch_tokens))  # fmt: skip
        self.num_changes += 1

    def checked(self, request: Request, *, drafted: int, accepted: int) -> None:
        """A request's draft was compared with what it says."""
        totals = self._totals
        totals.num_drafts += 1
        totals.num_drafted_tokens += drafted
        totals.num_accepted_tokens += accepted
        totals.num_generated_tokens += accepted
        record = self._records.get(request.request_id)
        if record is not None:
            if record.status is RequestStatus.RUNNING:
                record.num_computed_tokens = request.num_computed_tokens
            record.num_output_tokens = request.num_output_tokens
            record.num_drafted_tokens += drafted
            record.num_accepted_tokens += accepted

    def finished(self, request: Request, reason: FinishReason, *, time: float) -> None:
        """A request ended and has no region any more."""
        record = self._records[request.request_id]
        record.status = RequestStatus.FINISHED
        record.finish_reason = reason
        record.finished_time = time
        record.num_output_tokens = request.num_output_tokens
        self._mark(record, EventKind.FINISHED, time=time)
        self._finished.append(record)
        if len(self._finished) > self._max_finished:
            self._forget(self._finished.popleft())

    def clear(self) -> None:
        """Forget what has ended, and start to count anew."""
        while self._finished:
            self._forget(self._finished.popleft())
        self._totals = Totals()
        self._step_size_counts = [0] * len(self._step_size_counts)
        self.num_changes += 1

    def _forget(self, record: RequestRecord) -> None:
        if self._records.get(record.request_id) is record:  # its id may be in use anew
            del self._records[record.request_id]

    # Read by anyone.

    @property
    def totals(self) -> Totals:
        """A copy of the sums."""
        return replace(self._totals)

    @property
    def step_size_counts(self) -> list[int]:
        """How many steps had up to each of STEP_SIZES tokens, and how many had more."""
        return self._step_size_counts.copy()

    def records(self) -> list[RequestRecord]:
        """Copies of all that is remembered of requests, the oldest first."""
        return [replace(record) for record in tuple(self._records.values())]

    def record(self, request_id: str) -> RequestRecord | None:
        """A copy of what is remembered of one request."""
        record = self._records.get(request_id)
        return None if record is None else replace(record)

    def admitted_time(self, request_id: str) -> float:
        """When a running request got its region, on the monotonic clock."""
        admitted = self._records[request_id].admitted_time
        assert admitted is not None, f"{request_id} has no region"
        return admitted

    def history(self, request_id: str) -> RequestHistory | None:
        """A request with those of its events that the ring still holds; None if it is unknown."""
        record = self.record(request_id)
        if record is None:
            return None
        written = self._num_written
        oldest = max(record.first_event, written - self._max_events)
        found = self._own_events(record.serial, oldest, written)
        # The engine may have overwritten the oldest while we copied: those may be torn.
        torn = max(0, self._num_written - self._max_events - oldest)
        events = tuple(
            Event(EventKind(kind), began, seconds, start, count, size, tokens)
            for position, (began, seconds, _, kind, start, count, size, tokens) in found
            if position >= torn
        )
        # And it may have gone on, so that a copied record knows fewer events than were found.
        record.num_events = max(record.num_events, len(events))
        return RequestHistory(record=record, events=events)

    def _own_events(
        self, serial: int, oldest: int, newest: int
    ) -> list[tuple[int, tuple[float, float, int, int, int, int, int, int]]]:
        """The events of one request, each with how many others lie between it and `oldest`."""
        first, stop = oldest % self._num_slots, newest % self._num_slots
        wraps = newest > oldest and stop <= first
        parts = (slice(first, None), slice(stop)) if wraps else (slice(first, stop),)
        found: list[tuple[int, tuple[float, float, int, int, int, int, int, int]]] = []
        offset = 0
        for part in parts:
            own = np.flatnonzero(self._events["serial"][part] == serial)
            found += zip((own + offset).tolist(), self._events[part][own].tolist(), strict=True)
            offset += self._num_slots - first
        return found

    def _mark(
        self, record: RequestRecord, kind: EventKind, *, time: float, start: int = 0, count: int = 0
    ) -> None:
        """Record something that takes no time."""
        self._write(record, (time, 0.0, record.serial, kind, start, count, 0, 0))
        self.num_changes += 1

    def _write(
        self, record: RequestRecord, event: tuple[float, float, int, int, int, int, int, int]
    ) -> None:
        offset = self._num_written % self._num_slots * _PACKED.size
        _PACKED.pack_into(self._ring, offset, *event)
        self._num_written += 1
        record.num_events += 1


def _kind(record: RequestRecord, count: int, *, samples: bool) -> EventKind:
    """What `count` new tokens are to a request; the one it may sample is not counted yet."""
    if record.num_output_tokens == 0:
        return EventKind.PROMPT_CHUNK
    return EventKind.DECODE if count == 1 and samples else EventKind.RECOMPUTE
