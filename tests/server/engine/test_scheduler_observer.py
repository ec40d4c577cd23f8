"""Watching a scheduler changes none of its decisions."""

import random

import pytest
from engines import make_request
from observed import BLOCK_SIZE, observed_scheduler, step

from cache.manager import KVCacheManager
from server.engine.scheduler import Scheduler
from server.engine.timeline import Timeline


def decisions(scheduler) -> list:
    """What a scheduler does with random work, preemptions and aborts included."""
    draw = random.Random(11)
    taken = []
    for number in range(400):
        if draw.random() < 0.3 and len(scheduler.requests) < 6:
            prompt = [draw.randrange(2) for _ in range(draw.randrange(1, 20))]
            request = make_request(
                prompt,
                request_id=f"request {number}",
                arrival_time=float(number),
                max_tokens=draw.randrange(1, 12),
            )
            scheduler.add(request)
        if draw.random() < 0.05 and scheduler.requests:
            scheduler.abort(draw.choice(scheduler.requests).request_id)
        batch = step(scheduler)
        if batch is not None:
            taken.append(
                [(e.request.request_id, e.start, e.num_new_tokens) for e in batch.scheduled]
            )
    return [taken, scheduler.num_preemptions, scheduler.num_finished]


def test_decisions_are_the_schedulers_own():
    """An observed scheduler and a plain one do the same with the same work."""
    observed = observed_scheduler(Timeline(), num_blocks=12, max_num_batched_tokens=16)
    plain = Scheduler(
        KVCacheManager(num_blocks=12, block_size=BLOCK_SIZE),
        max_num_seqs=8,
        max_num_batched_tokens=16,
        max_model_len=1000,
    )
    seen, expected = decisions(observed), decisions(plain)
    assert seen == expected
    assert seen[1] > 0, "no preemption was provoked"


def test_a_refused_request_leaves_no_trace():
    """What the scheduler does not take is not in the timeline."""
    timeline = Timeline()
    scheduler = observed_scheduler(timeline)
    with pytest.raises(ValueError, match="tokens fit"):
        scheduler.add(make_request(range(10_000)))
    assert timeline.records() == []
