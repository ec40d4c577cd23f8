"""Captured decode passes give what passes launched anew give, whoever shares the batch."""

from __future__ import annotations

import copy

import pytest
import torch
from checkpoints import RANDOM_CONFIGS, random_model
from cuda_on_cpu import cuda_executor
from fake_capture import FakeCapture
from flat_batches import LIMITS, FlatRequests
from hf_reference import ours_from
from slow_device import SlowQueue

from model.cuda.graphs import BUCKETS, bucket_for, width_for
from model.transformer import Transformer


@pytest.fixture(scope="module")
def model() -> Transformer:
    return ours_from(random_model(RANDOM_CONFIGS["rand-llama-tied"]))


def test_batches_are_padded_to_the_next_bucket():
    """Every size up to the largest has one, and no larger one."""
    assert [bucket_for(count) for count in (1, 2, 3, 5, 33, 256, 257)] == [
        1, 2, 4, 8, 48, 256, None,
    ]  # fmt: skip
    assert list(BUCKETS) == sorted(set(BUCKETS))


def test_tables_are_cut_at_few_widths():
    """4096 tokens, four times as many and so on, but no more than a request can have."""
    widths = {width_for(n, block_size=16, max_blocks=3000) for n in range(1, 3001)}
    assert widths == {256, 1024, 3000}


def decode(executor, requests: FlatRequests, names: str, number: int) -> torch.Tensor:
    """One decode step of the named requests."""
    batch = requests.batch(**{name: [(ord(name) + 13 * number) % 250] for name in names})
    executor.prepare(batch)
    logits = executor.submit(batch).result().logits
    assert len(logits) == len(names)
    return logits.clone()


def test_replays_equal_passes_launched_anew(model):
    """Requests come and go; a graph captured for some serves others, padded, at other positions."""
    capture = FakeCapture()
    captured = cuda_executor(copy.deepcopy(model), capture=capture)
    eager = cuda_executor(copy.deepcopy(model))
    first, second = FlatRequests(), FlatRequests()
    prompt = {"a": [1], "b": [2, 3], "c": [4] * 17}
    for executor, requests in ((captured, first), (eager, second)):
        batch = requests.batch(**prompt)
        executor.prepare(batch)
        executor.submit(batch)
    for number, names in enumerate(["ab", "abc", "ca", "bca", "c", "ba"]):
        found = decode(captured, first, names, number)
        torch.testing.assert_close(found, decode(eager, second, names, number))
    assert capture.num_captured == 3  # buckets of 1, 2 and 4
    assert capture.num_replayed == 6


def test_a_pass_is_staged_before_the_graph_runs(model):
    """Copies that are as late as they may be still bring each step its own numbers."""
    queue = SlowQueue()
    slow = cuda_executor(copy.deepcopy(model), queue=queue, capture=FakeCapture(queue))
    plain = cuda_executor(copy.deepcopy(model), capture=FakeCapture())
    first, second = FlatRequests(), FlatRequests()
    for number in range(4):
        found = decode(slow, first, "ab", number)
        assert torch.equal(found, decode(plain, second, "ab", number))


def test_padding_writes_to_nobody(model):
    """The tokens of a padded batch leave all blocks but the padding block as they are."""
    executor = cuda_executor(copy.deepcopy(model), capture=FakeCapture())
    requests = FlatRequests()
    decode(executor, requests, "abc", 0)
    kept = {name: list(region.block_ids) for name, region in requests.regions.items()}
    before = executor.pool.storage.clone()
    decode(executor, requests, "a", 1)
    changed = (executor.pool.storage != before).flatten(3).any(-1).any(0).any(0)
    assert set(changed.nonzero().flatten().tolist()) <= {0, *kept["a"]}


def test_warming_up_captures_every_bucket(model):
    """No request waits for a capture, and what was written meanwhile is nobody's."""
    capture = FakeCapture()
    executor = cuda_executor(copy.deepcopy(model), capture=capture)
    executor.warm_up()
    assert capture.num_captured == len([bucket for bucket in BUCKETS
                                        if bucket <= LIMITS.max_num_seqs])  # fmt: skip
    assert not executor.pool.storage[:, :, 1:].any()
    decode(executor, FlatRequests(), "abc", 0)
    assert capture.num_captured == 3
