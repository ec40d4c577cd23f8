"""A scheduler whose requests are watched, and the step of an engine that has no model."""

from __future__ import annotations

from cache.manager import KVCacheManager
from server.engine.planning.batch import Batch
from server.engine.planning.pace import Pace
from server.engine.scheduler import Scheduler
from server.engine.scheduler_observer import TimelineObserver
from server.engine.timeline import Timeline
from server.request import FinishReason

BLOCK_SIZE = 4


def observed_scheduler(
    timeline: Timeline, *, num_blocks: int = 64, max_num_batched_tokens: int = 64
) -> Scheduler:
    """A scheduler for small blocks."""
    manager = KVCacheManager(num_blocks=num_blocks, block_size=BLOCK_SIZE)
    return Scheduler(
        manager,
        observer=TimelineObserver(timeline, prefix_caching=manager.prefix_caching),
        pace=Pace(step_tokens=64),
        max_num_seqs=8,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=1000,
    )


def step(scheduler: Scheduler) -> Batch | None:
    """Schedule, pretend to compute, choose token 7, commit, finish."""
    batch = scheduler.schedule()
    if batch is None:
        return None
    scheduler.commit(batch)
    for request in batch.sampling_requests:
        request.token_ids.append(7)
        if request.num_output_tokens == request.params.max_tokens:
            scheduler.finish(request, FinishReason.LENGTH)
    return batch
