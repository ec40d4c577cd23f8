"""What a step stages reaches the device whole, however late the copy happens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from slow_device import SlowQueue

from model.executors import staging as staging_module
from model.executors.staging import Staging


def stage(queue: SlowQueue) -> Staging:
    return Staging(16, device=torch.device("cpu"), dtype=torch.int32, queue=queue)


def test_arrays_arrive_in_their_shapes():
    """One copy brings them all, one behind the other."""
    queue = SlowQueue()
    first, second = stage(queue).upload([np.arange(3), np.array([[7, 8], [9, 10]])])
    queue.run()
    assert first.tolist() == [0, 1, 2]
    assert second.tolist() == [[7, 8], [9, 10]]
    assert second.dtype == torch.int32


def steps_arrive(queue: SlowQueue) -> bool:
    """Whether each of some steps sees its own numbers when the device gets to run it."""
    staging, seen, expected = stage(queue), [], []
    for number in range(6):
        [numbers] = staging.upload([np.arange(number, number + 4)])
        expected.append(list(range(number, number + 4)))
        if number:  # the device is a step behind: it runs what was given before the last copy
            queue.run(before=number)
            seen.append(numbers.tolist())
    return seen == expected[:-1]


def test_the_next_step_may_be_staged_while_the_last_is_under_way():
    """The device a step behind the host sees every step's own numbers."""
    assert steps_arrive(SlowQueue())


def test_one_buffer_would_be_too_few(monkeypatch: pytest.MonkeyPatch):
    """With a single buffer and nobody waiting, a step would see the numbers of the one after it."""
    monkeypatch.setattr(staging_module, "NUM_BUFFERS", 1)
    queue = SlowQueue()
    staging = stage(queue)
    monkeypatch.setattr(staging, "_marks", [None])
    [numbers] = staging.upload([np.arange(4)])
    staging._marks = [None]
    staging.upload([np.arange(4, 8)])
    queue.run(before=1)
    assert numbers.tolist() == [4, 5, 6, 7]


def test_a_buffer_still_in_use_is_waited_for():
    """Three steps ahead of the device, the host waits for the copy whose buffer it needs."""
    queue = SlowQueue()
    staging = stage(queue)
    for _ in range(2):
        staging.upload([np.arange(4)])
    assert queue.waits == 0
    staging.upload([np.arange(4)])
    assert queue.waits == 1
