"""ModelRunner: turns a scheduled batch into plain integers and has an executor compute it.

The executor knows no requests, and what knows requests no tensors' layout: this is where they
meet. Owned by the engine; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from cache.manager import Region
from model.executors.executor import Executor, FlatBatch, Pending
from server.engine.planning.batch import Batch
from server.request import Request

LOGIT_SLICE_BYTES = 64 * 2**20
"""Logits of scored prompts are computed in slices of at most this size."""


class ModelRunner:
    """Runs the model over the batches that the scheduler makes.

    Args:
        executor: What computes.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def warm_up(self) -> None:
        """Do what would hold up the first requests."""
        self._executor.warm_up()

    def submit(self, batch: Batch) -> Pending:
        """Begin to run all layers over the batch, and the output layer over its sampled rows."""
        flat = _flatten(batch)
        self._executor.prepare(flat)
        return self._executor.submit(flat)

    def logit_slices(self, hidden: Tensor, rows: range) -> Iterator[tuple[range, Tensor]]:
        """Logits of many neighbouring rows, a bounded number of bytes at a time."""
        step = max(1, LOGIT_SLICE_BYTES // (4 * self._executor.vocab_size))
        for start in range(rows.start, rows.stop, step):
            part = range(start, min(start + step, rows.stop))
            yield part, self._executor.logits(hidden[part.start : part.stop])


def _flatten(batch: Batch) -> FlatBatch:
    """The new tokens of all requests, with where they stand and what they see."""
    input_ids: list[int] = []
    starts: list[int] = []
    regions: list[Region] = []
    moved: list[Request] = []
    for request, start, count, _, draft in batch.scheduled:
        token_ids, region = request.token_ids, _region(request)
        if count == 1:
            input_ids.append(token_ids[start])
        else:
            input_ids += token_ids[start : start + count - len(draft)]
            input_ids += draft
        starts.append(start - region.num_dropped_tokens)
        regions.append(region)
        if region.num_stale_tokens:
            moved.append(request)
    query_lengths = batch.query_lengths
    for request in moved:  # their first tokens once more, behind all rows that are asked for
        region = _region(request)
        input_ids += request.token_ids[: region.num_stale_tokens]
        starts.append(0)
        regions.append(region)
        query_lengths += (region.num_stale_tokens,)
    return FlatBatch(input_ids, starts, query_lengths, regions, batch.sample_rows)


def _region(request: Request) -> Region:
    assert request.region is not None, "whoever is scheduled has a region"
    return request.region
