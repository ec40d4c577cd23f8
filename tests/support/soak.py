"""Mixed traffic against a fleet whose replicas are killed, for as long as one likes.

Every answer is compared with what the idle fleet said before: lost, truncated, duplicated and
different ones are counted, memory must stay in a band, and in the end nothing may be held. With
--leak the front forgets to free something for each request: that run must be found to leak.

    python tests/support/soak.py --seconds 120 [--leak]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import checkpoints
import httpx
from fleet_process import FleetProcess, fleet_process
from serving import wait_until
from stream_events import StreamedCall

MODEL = "rand-llama-tied"
COMPLETIONS = "/v1/completions"
TEXT = {"max_tokens": 60, "ignore_eos": True}
TURNS = {"messages": [{"role": "user", "content": "Say something."}], "max_tokens": 60}
BODIES: list[tuple[str, dict[str, Any]]] = [
    *((COMPLETIONS, TEXT | {"prompt": f"Tell {i}", "temperature": 0, "seed": 0}) for i in range(4)),
    *((COMPLETIONS, TEXT | {"prompt": "Draw", "seed": seed, "logprobs": 1}) for seed in range(3)),
    (COMPLETIONS, TEXT | {"prompt": "Digits", "seed": 4}
     | {"structured_outputs": {"regex": "[0-9]{50}"}}),
    (COMPLETIONS, TEXT | {"prompt": "long " * 80, "seed": 5, "stop": ["never"]}),
    ("/v1/chat/completions", TURNS | {"seed": 6}),
    ("/v1/messages", TURNS | {"model": MODEL, "temperature": 0}),
]  # fmt: skip
LEAK = (
    "import server.fleet.front as f; kept = []; leave = f.Front._leave; "
    "f.Front._leave = lambda self, limit: (kept.append(b'x' * 300_000), leave(self, limit)); "
)
_BAND_BYTES = 24 * 2**20
"""How much more the front may hold in the last third of a run than in the middle one."""
_LEAVES = 0.15
_WRONG = 0.05


@dataclass
class Tally:
    """What the clients met."""

    counts: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    examples: list[str] = field(default_factory=list)

    def add(self, *names: str, example: str = "") -> None:
        with self.lock:
            self.counts.update(names)
            if example and len(self.examples) < 10:
                self.examples.append(example)


class Client(threading.Thread):
    """One client after the other, until the time is over."""

    def __init__(
        self, url: str, golden: list[Any], tally: Tally, *, seed: int, end: float, pause: float
    ) -> None:
        super().__init__(daemon=True)
        self._url, self._golden, self._tally = url, golden, tally
        self._end, self._pause = end, pause
        self._chance = random.Random(seed)

    def run(self) -> None:
        while time.monotonic() < self._end:
            time.sleep(self._chance.random() * 2 * self._pause)
            kind = self._chance.random()
            if kind < _WRONG:
                self._ask_wrongly()
            elif kind < _WRONG + _LEAVES:
                self._leave()
            else:
                self._read()

    def _read(self) -> None:
        index = self._chance.randrange(len(BODIES))
        path, body = BODIES[index]
        call = StreamedCall(self._url, body, path).join()
        verdict = judge(call, self._golden[index])
        example = f"{path} {json.dumps(body)}: {call.status} {call.error}" if verdict else ""
        self._tally.add("requests", "streams", *([verdict] if verdict else []), example=example)

    def _leave(self) -> None:
        path, body = self._chance.choice(BODIES)
        with httpx.stream(
            "POST", self._url + path, json=body | {"stream": True}, timeout=200
        ) as answer:
            lines = answer.iter_lines()
            for _ in range(self._chance.randrange(1, 20)):
                next(lines, None)
        self._tally.add("requests", "left")

    def _ask_wrongly(self) -> None:
        answer = httpx.post(
            self._url + COMPLETIONS, json={"prompt": "a", "max_tokens": -1}, timeout=200
        )
        names = [] if answer.status_code == 400 else ["lost"]
        self._tally.add("requests", "refused", *names, example=answer.text if names else "")


def judge(call: StreamedCall, expected: list[Any]) -> str | None:
    """What is wrong with an answer: nothing, or one word."""
    content = call.content
    if content == expected:
        return None
    if call.error or call.status != 200:
        return "lost"
    if content == expected[: len(content)]:
        return "truncated"
    return "duplicated" if len(content) > len(expected) else "different"


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def is_flat(samples: list[int]) -> bool:
    """Whether the last third of what a process held is within the band of the middle third."""
    third = len(samples) // 3
    middle, last = sorted(samples[third : 2 * third]), sorted(samples[2 * third :])
    before, after = middle[len(middle) // 2], last[len(last) // 2]
    return after - before <= _BAND_BYTES


def soak(
    fleet: FleetProcess, *, seconds: float, clients: int, kill_every: float, pause: float
) -> dict[str, Any]:
    """Run the traffic and the faults; returns what is to be reported."""
    tally = Tally()
    golden = [StreamedCall(fleet.url, body, path).join().content for path, body in BODIES]
    end = time.monotonic() + seconds
    threads = [
        Client(fleet.url, golden, tally, seed=i, end=end, pause=pause) for i in range(clients)
    ]
    for thread in threads:
        thread.start()
    memory: list[int] = []
    next_kill = time.monotonic() + kill_every
    while time.monotonic() < end:
        time.sleep(1)
        memory.append(resident_bytes(fleet.process.pid))
        if time.monotonic() > next_kill and fleet.num_ready == 2 and end - time.monotonic() > 20:
            fleet.kill_replica(random.choice(fleet.replica_pids))
            tally.add("kills")
            next_kill = time.monotonic() + kill_every
    for thread in threads:
        thread.join(300)
    fleet.wait_until_whole(2)
    return {
        "seconds": round(seconds),
        **{name: tally.counts[name] for name in (
            "requests", "streams", "left", "refused", "kills", "lost", "truncated", "duplicated",
            "different")},
        "front_first_mib": memory[len(memory) // 3] >> 20,
        "front_last_mib": memory[-1] >> 20,
        "flat": is_flat(memory),
        "idle": wait_until(lambda: is_idle(fleet.url), 20),
        "examples": tally.examples,
    }  # fmt: skip


def is_idle(url: str) -> bool:
    """Whether no replica holds a request or a part of its cache."""
    names = (
        "vllm:num_requests_running{",
        "vllm:num_requests_waiting{",
        "vllm:kv_cache_usage_perc{",
    )
    lines = httpx.get(f"{url}/metrics", timeout=60).text.splitlines()
    return all(line.endswith(" 0.0") for line in lines if line.startswith(names))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--kill-every", type=float, default=30)
    parser.add_argument("--pause", type=float, default=0, help="seconds between requests")
    parser.add_argument("--leak", action="store_true", help="plant a leak, which must be found")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = checkpoints.build(MODEL, Path(folder))
        with fleet_process(model, prelude=LEAK if options.leak else "") as fleet:
            found = soak(
                fleet,
                seconds=options.seconds,
                clients=options.clients,
                kill_every=options.kill_every,
                pause=options.pause,
            )
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    wrong = sum(found[name] for name in ("lost", "truncated", "duplicated", "different"))
    is_well = wrong == 0 and found["idle"] and found["kills"] > 0
    return 0 if is_well and found["flat"] is not options.leak else 1


if __name__ == "__main__":
    sys.exit(main())
