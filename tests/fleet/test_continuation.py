"""A replica is killed in the middle of streams: every client gets its whole answer, once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from fleet_process import FleetProcess
from server_process import server_process
from serving import wait_until
from stream_events import StreamedCall

pytestmark = [pytest.mark.fleet, pytest.mark.slow]

COMPLETIONS, CHAT, MESSAGES = "/v1/completions", "/v1/chat/completions", "/v1/messages"
PROMPT = {"prompt": "The quick brown fox", "max_tokens": 400, "ignore_eos": True}
TURNS = {"messages": [{"role": "user", "content": "Say something."}], "max_tokens": 400}
DRAWN = {"temperature": 1.0, "top_p": 0.95}
GREEDY = {"temperature": 0, "seed": 0}
CALLS: list[tuple[str, dict]] = [
    *((COMPLETIONS, PROMPT | GREEDY | {"prompt": f"Greedy {i}"}) for i in range(4)),
    *((COMPLETIONS, PROMPT | DRAWN | {"seed": seed}) for seed in range(4)),
    (COMPLETIONS, PROMPT | DRAWN | {"seed": 5, "logprobs": 3}),
    (COMPLETIONS, PROMPT | DRAWN | {"seed": 6, "n": 3, "max_tokens": 300}),
    (COMPLETIONS, PROMPT | DRAWN | {"seed": 7, "stop": ["never comes", "abc"]}),
    (COMPLETIONS, PROMPT | DRAWN | {"seed": 8, "structured_outputs": {"regex": "[a-z ]{390}"}}),
    (COMPLETIONS, PROMPT | DRAWN | {"seed": 9, "return_token_ids": True, "echo": True}),
    (CHAT, TURNS | DRAWN | {"seed": 10, "ignore_eos": True, "logprobs": True}),
    (CHAT, TURNS | DRAWN | {"seed": 11, "ignore_eos": True, "frequency_penalty": 0.7}),
    (MESSAGES, TURNS | {"model": "rand-llama-tied", "temperature": 0}),
]


@pytest.fixture(scope="module")
def alone(checkpoint) -> list[list[dict]]:
    """What a plain server answers to each call, one after the other."""
    with server_process(checkpoint("rand-llama-tied"), kv_cache_memory="64MiB") as server:
        return [StreamedCall(server.url, body, path).join().content for path, body in CALLS]


def ticks(pid: int) -> int:
    """Processor time of a process so far."""
    numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(numbers[11]) + int(numbers[12])


def busiest(fleet: FleetProcess) -> int:
    """The replica that has used the most processor time lately: it answers the most."""
    before = {pid: ticks(pid) for pid in fleet.replica_pids}
    wait_until(lambda: max(ticks(pid) - before[pid] for pid in before) >= 5, 20)
    return max(before, key=lambda pid: ticks(pid) - before[pid])


def test_no_token_is_lost_or_said_twice(fleet: FleetProcess, alone):
    """Kill -9 of a busy replica in the middle of 16 streams: each equals its run alone."""
    assert len(CALLS) == 16
    fleet.wait_until_whole(2)
    calls = [StreamedCall(fleet.url, body, path) for path, body in CALLS]
    assert wait_until(lambda: all(len(call.events) > 5 for call in calls), 60)
    fleet.kill_replica(busiest(fleet))
    at_kill = [len(call.events) for call in calls]
    for call in calls:
        call.join()
    assert [call.status for call in calls] == [200] * 16
    assert [call.error for call in calls] == [None] * 16
    for (path, body), call, expected in zip(CALLS, calls, alone, strict=True):
        assert call.content == expected, f"{path} {body}"
    unfinished = sum(had < len(call.events) for had, call in zip(at_kill, calls, strict=True))
    assert unfinished >= 8, "the replica was killed too late for this test to say anything"


def test_whole_answers_are_not_lost_either(fleet: FleetProcess, alone):
    """A client that waits for a whole answer gets it, computed where it was not lost."""
    fleet.wait_until_whole(2)
    body = CALLS[4][1]
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(whole_text, fleet.url, body) for _ in range(8)]
        time.sleep(0.3)
        fleet.kill_replica(busiest(fleet))
        texts = {answer.result() for answer in asked}
    expected = "".join(event["choices"][0]["text"] for event in alone[4])
    assert texts == {expected}


def whole_text(url: str, body: dict) -> str:
    answer = httpx.post(url + COMPLETIONS, json=body, timeout=200)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]
