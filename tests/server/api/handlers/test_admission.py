"""server.api.handlers.admission: the queue limit and when to come back."""

from __future__ import annotations

import pytest

from server.api.handlers import admission
from server.api.handlers.admission import Admission
from server.errors import OverloadedError


def test_a_full_queue_refuses_until_somebody_leaves():
    """The limit counts sequences, and a ticket counts once however often it is released."""
    door = Admission(4)
    first = door.enter(3)
    door.enter(1)
    with pytest.raises(OverloadedError):
        door.enter(1)
    first.release()
    first.release()
    assert door.num_open == 1
    door.enter(1)


def test_a_call_larger_than_the_limit_still_runs_when_there_is_room():
    """No request is refused for ever."""
    Admission(4).enter(100)


def test_retry_after_follows_the_measured_rate(monkeypatch):
    """Eight places are needed, and eight sequences ended in 3.5 seconds."""
    now = [0.0]
    monkeypatch.setattr(admission.time, "monotonic", lambda: now[0])
    door = Admission(1)
    for _ in range(8):
        ticket = door.enter(1)
        now[0] += 0.5
        ticket.release()
    door.enter(8)
    with pytest.raises(OverloadedError) as error:
        door.enter(1)
    assert error.value.retry_after == 4
    assert error.value.headers["Retry-After"] == "4"


def test_retry_after_is_bounded(monkeypatch):
    """Clients give up beyond two minutes, so nothing longer is said."""
    now = [0.0]
    monkeypatch.setattr(admission.time, "monotonic", lambda: now[0])
    door = Admission(1)
    for _ in range(2):
        ticket = door.enter(1)
        now[0] += 1000.0
        ticket.release()
    door.enter(5)
    with pytest.raises(OverloadedError) as error:
        door.enter(1)
    assert error.value.retry_after == admission.MAX_RETRY_AFTER
