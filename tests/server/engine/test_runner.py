"""The runner turns a batch of requests into the integers of a pass, and slices scored logits."""

from __future__ import annotations

import pytest
import torch
from engines import make_request
from observed import observed_scheduler

from model.executors.executor import FlatBatch, PassOutput, Ready
from server.engine import runner as runner_module
from server.engine.planning.batch import Batch, ScheduledRequest
from server.engine.runner import ModelRunner
from server.engine.timeline import Timeline


class FakeExecutor:
    """Notes what it is given; its logits are the rows of hidden states."""

    vocab_size = 4

    def __init__(self) -> None:
        self.prepared: list[FlatBatch] = []
        self.sizes: list[int] = []

    def prepare(self, batch: FlatBatch) -> None:
        self.prepared.append(batch)

    def submit(self, batch: FlatBatch) -> Ready:
        assert self.prepared[-1] is batch
        return Ready(PassOutput(torch.zeros(1, 4), torch.zeros(1, 4)))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(hidden))
        return hidden


@pytest.fixture
def executor() -> FakeExecutor:
    return FakeExecutor()


def test_a_batch_becomes_plain_integers(executor):
    """New tokens stand one request after the other, with their starts and regions."""
    scheduler = observed_scheduler(Timeline())
    first, second = make_request([5]), make_request([6, 7, 8, 9])
    scheduler.add(first)
    scheduler.add(second)
    scheduler.schedule()
    batch = Batch.of(
        (ScheduledRequest(first, 0, 1, samples=True), ScheduledRequest(second, 1, 2, samples=False))
    )
    ModelRunner(executor).submit(batch)
    [flat] = executor.prepared
    assert list(flat.input_ids) == [5, 7, 8]
    assert list(flat.starts) == [0, 1]
    assert flat.query_lengths == (1, 2)
    assert list(flat.regions) == [first.region, second.region]
    assert list(flat.sample_rows) == [0]


def test_scored_logits_come_in_bounded_slices(executor, monkeypatch):
    """No slice is larger than the bound, and together they are all rows."""
    monkeypatch.setattr(runner_module, "LOGIT_SLICE_BYTES", 3 * 4 * executor.vocab_size)
    hidden = torch.arange(40.0).view(10, 4)
    slices = list(ModelRunner(executor).logit_slices(hidden, range(1, 9)))
    assert [rows for rows, _ in slices] == [range(1, 4), range(4, 7), range(7, 9)]
    assert torch.equal(torch.cat([logits for _, logits in slices]), hidden[1:9])
    assert executor.sizes == [3, 3, 2]
