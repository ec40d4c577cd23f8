"""The timeline tells what the scheduler did, in bounded memory, to readers in any thread."""

import random
import threading
from dataclasses import replace

import pytest
from engines import make_request
from observed import observed_scheduler, step

from server.engine.timeline import STEP_SIZES, EventKind, Timeline
from server.request import FinishReason, RequestStatus

STEPS = {EventKind.PROMPT_CHUNK, EventKind.DECODE, EventKind.RECOMPUTE}


def kinds(history) -> list[EventKind]:
    return [event.kind for event in history.events]


def run(scheduler, *requests) -> None:
    for request in requests:
        scheduler.add(request)
    while scheduler.has_work:
        step(scheduler)


def test_life_of_a_request():
    """A request is queued, admitted, computed chunk by chunk, decoded token by token, finished."""
    timeline = Timeline()
    request = make_request(range(10), max_tokens=3)
    run(observed_scheduler(timeline, max_num_batched_tokens=4), request)
    history = timeline.history(request.request_id)
    assert kinds(history) == [
        EventKind.QUEUED,
        EventKind.ADMITTED,
        *[EventKind.PROMPT_CHUNK] * 3,
        *[EventKind.DECODE] * 2,
        EventKind.FINISHED,
    ]
    steps = [event for event in history.events if event.kind in STEPS]
    assert [(event.start, event.count) for event in steps] == [
        (0, 4), (4, 4), (8, 2), (10, 1), (11, 1),
    ]  # fmt: skip
    times = [event.time for event in history.events]
    assert times == sorted(times)
    assert all(event.seconds >= 0 and event.batch_size == 1 for event in steps)
    record = history.record
    assert (record.status, record.finish_reason) == (RequestStatus.FINISHED, FinishReason.LENGTH)
    assert (record.num_output_tokens, record.num_computed_tokens) == (3, 12)
    assert record.started_time <= record.first_token_time <= record.finished_time
    assert history.num_lost_events == 0


def test_steps_name_their_company():
    """Each step says how many requests and tokens were computed together."""
    timeline = Timeline()
    requests = [make_request([n] * 5, max_tokens=2) for n in range(3)]
    run(observed_scheduler(timeline), *requests)
    for request in requests:
        events = timeline.history(request.request_id).events
        chunk = next(event for event in events if event.kind is EventKind.PROMPT_CHUNK)
        assert (chunk.batch_size, chunk.batch_tokens, chunk.num_cache_tokens) == (3, 15, 5)


def test_cached_beginning_is_seen_at_admission():
    """The second request of two with the same beginning is admitted with its blocks cached."""
    timeline = Timeline()
    scheduler = observed_scheduler(timeline)
    first, second = make_request(range(10), max_tokens=1), make_request(range(11), max_tokens=1)
    run(scheduler, first)
    run(scheduler, second)
    admitted = timeline.history(second.request_id).events[1]
    assert (admitted.kind, admitted.start) == (EventKind.ADMITTED, 8)
    assert timeline.record(second.request_id).num_cached_tokens == 8
    totals = timeline.totals
    assert (totals.num_prefix_queried_tokens, totals.num_prefix_hit_tokens) == (21, 8)
    assert totals.num_generated_tokens == 2
    assert totals.num_computed_tokens == 10 + 3


def test_preemption_and_recomputation():
    """A request that gives way is seen to lose its tokens and to compute them again."""
    timeline = Timeline()
    scheduler = observed_scheduler(timeline, num_blocks=8)
    requests = [make_request([n] * 8, max_tokens=12, prefix_cache=False) for n in range(2)]
    run(scheduler, *requests)
    assert scheduler.num_preemptions > 0
    history = timeline.history(requests[1].request_id)
    assert history.record.num_preemptions == requests[1].num_preemptions > 0
    at = kinds(history).index(EventKind.PREEMPTED)
    lost = history.events[at]
    assert lost.start == history.events[at - 1].num_cache_tokens
    assert kinds(history)[at + 1 : at + 3] == [EventKind.ADMITTED, EventKind.RECOMPUTE]
    assert kinds(history)[-1] is EventKind.FINISHED


@pytest.mark.parametrize("max_events", [32, 100_000])
def test_random_work_matches_a_naive_log(max_events):
    """Whatever the scheduler does, the events kept are the last of those a list would hold."""
    draw = random.Random(5)
    timeline = Timeline(max_events=max_events)
    scheduler = observed_scheduler(timeline, num_blocks=12, max_num_batched_tokens=16)
    log: list[tuple[str, int, int, int]] = []
    requests = []
    for _ in range(300):
        if draw.random() < 0.3 and len(scheduler.requests) < 6:
            prompt = [draw.randrange(2) for _ in range(draw.randrange(1, 20))]
            requests.append(make_request(prompt, max_tokens=draw.randrange(1, 12)))
            scheduler.add(requests[-1])
        if draw.random() < 0.05 and scheduler.requests:
            scheduler.abort(draw.choice(scheduler.requests).request_id)
        batch = step(scheduler)
        for entry in batch.scheduled if batch else ():
            size = len(batch.scheduled)
            log.append((entry.request.request_id, entry.start, entry.num_new_tokens, size))
    kept = 0
    for request in requests:
        history = timeline.history(request.request_id)
        mine = [entry[1:] for entry in log if entry[0] == request.request_id]
        found = [(e.start, e.count, e.batch_size) for e in history.events if e.kind in STEPS]
        assert found == mine[len(mine) - len(found) :]
        assert history.num_lost_events == 0 or max_events == 32
        assert history.record.num_preemptions == request.num_preemptions
        kept += len(history.events)
    assert kept == min(max_events, timeline._num_written)


def test_finished_requests_are_forgotten_in_order():
    """Of requests that have ended only the last are remembered; open ones are never forgotten."""
    timeline = Timeline(max_finished=3)
    scheduler = observed_scheduler(timeline, num_blocks=300)
    stays = make_request([1], max_tokens=900)
    scheduler.add(stays)
    done = [make_request([n], max_tokens=1) for n in range(6)]
    for request in done:
        scheduler.add(request)
        step(scheduler)
    known = [record.request_id for record in timeline.records()]
    assert known == [request.request_id for request in (stays, *done[3:])]
    assert timeline.history(done[0].request_id) is None


def test_clear_forgets_the_past():
    """After the warm-up nothing is known and nothing is counted."""
    timeline = Timeline()
    run(observed_scheduler(timeline), make_request([1, 2]))
    timeline.clear()
    assert timeline.records() == []
    assert timeline.totals.num_steps == 0


def test_copies_do_not_change():
    """What a reader was given stays as it was."""
    timeline = Timeline()
    scheduler = observed_scheduler(timeline)
    request = make_request([1, 2], max_tokens=5)
    scheduler.add(request)
    step(scheduler)
    record, totals = timeline.record(request.request_id), timeline.totals
    before = replace(record), replace(totals)
    while scheduler.has_work:
        step(scheduler)
    assert (record, totals) == before


def test_reading_while_the_ring_is_overwritten():
    """A reader beside the engine never sees a torn event or one of another request."""
    timeline = Timeline(max_events=256)
    scheduler = observed_scheduler(timeline, num_blocks=300)
    request = make_request([1, 2], max_tokens=900)
    scheduler.add(request)

    def work():
        while scheduler.has_work:
            step(scheduler)

    engine = threading.Thread(target=work)
    engine.start()
    while engine.is_alive():
        events = timeline.history(request.request_id).events
        decodes = [event.start for event in events if event.kind is EventKind.DECODE]
        assert decodes == list(range(decodes[0], decodes[-1] + 1)) if decodes else True
    engine.join()
    assert len(timeline.history(request.request_id).events) == 256


def test_steps_are_counted_by_their_size():
    """A step counts at the least power of two that is not below its number of tokens."""
    timeline = Timeline()
    run(
        observed_scheduler(timeline, max_num_batched_tokens=9),
        make_request(range(30), max_tokens=3),
    )
    # 9, 9, 9, then 3 and twice 1.
    expected = {16: 3, 4: 1, 1: 2}
    counts = dict(zip(STEP_SIZES, timeline.step_size_counts, strict=False))
    assert {size: count for size, count in counts.items() if count} == expected
    timeline.clear()
    assert not any(timeline.step_size_counts)
