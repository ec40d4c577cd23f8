"""text_logits: what the model says at every position of a text, for measuring its quality.

Runs the text through the scheduler and the cache as any request's prompt, in the same chunks, and
keeps no more than one slice of logits. Belongs to whoever owns the engine; chooses no token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from server.engine.runner import ModelRunner
from server.engine.scheduler import Scheduler
from server.request import FinishReason, Request, SamplingParams


def text_logits(
    scheduler: Scheduler, runner: ModelRunner, token_ids: Sequence[int]
) -> Iterator[tuple[range, Tensor]]:
    """Compute the logits of every token of one text, some rows at a time.

    Args:
        scheduler: Has nothing to do, and is given nothing until the iterator ends or is closed.
        runner: Runs what it schedules.
        token_ids: The text, no longer than a request may be.

    Yields:
        Positions, and their logits (R, V) float32: row i is what follows token i.

    Raises:
        ValueError: Other requests are running, or the text is empty or too long.
    """
    if scheduler.has_work:
        raise ValueError("text_logits needs an engine without requests, but some are running")
    request = Request(
        request_id="text-logits",
        token_ids=list(token_ids),
        params=SamplingParams(max_tokens=0),
        prefix_cache=False,
    )
    scheduler.add(request)
    try:
        while request.num_uncomputed_tokens:
            batch = scheduler.schedule()
            assert batch is not None, "the only request always proceeds"
            first = batch.scheduled[0].start
            hidden = runner.submit(batch).result().hidden
            for rows, logits in runner.logit_slices(hidden, range(batch.num_tokens)):
                yield range(first + rows.start, first + rows.stop), logits
            scheduler.commit(batch)
    finally:
        scheduler.finish(request, FinishReason.LENGTH)
