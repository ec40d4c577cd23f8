"""The simulation beside two real replicas: the same traffic, and how far their figures are apart.

    python tests/support/validate_simulation.py MODEL.gguf

The model is fitted to these replicas first, by one prompt, one answer alone and some together.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from fleet_process import fleet_process

from server.fleet.known_blocks import KnownBlocks
from server.fleet.prompt_blocks import BLOCK_CHARACTERS
from server.fleet.simulation.replica_model import ReplicaModel
from server.fleet.simulation.simulation import Simulation
from server.fleet.simulation.traffic import TOKENS_PER_BLOCK, Arrival, Traffic

REPLICAS = 2
WORDS = ("time", "year", "work", "hand", "part", "case", "week", "fact", "room", "line", "book")
ROWS = 6
DECODED = 48


@dataclass
class Seen:
    """One request and what became of it, in seconds."""

    first: float = 0.0
    whole: float = 0.0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0


def text_of(blocks: Sequence[str]) -> str:
    """A prompt of whole blocks of characters, the same for the same names."""
    return "".join(_block(name) for name in blocks)


def _block(name: str) -> str:
    chance = random.Random(name)
    text = " ".join(chance.choice(WORDS) for _ in range(BLOCK_CHARACTERS // 5 + 1))
    return text[: BLOCK_CHARACTERS - 1] + " "


def ask(url: str, prompt: str, num_tokens: int) -> Seen:
    """Stream one answer."""
    body = {
        "prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True, "temperature": 0,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    seen, began = Seen(), time.perf_counter()
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            seen.first = seen.first or time.perf_counter() - began
            usage = json.loads(line.removeprefix("data: ")).get("usage")
            if usage:
                seen.num_prompt_tokens = usage["prompt_tokens"]
                seen.num_cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
    seen.whole = time.perf_counter() - began
    return seen


def together(url: str, asked: Sequence[tuple[float, str, int]]) -> list[Seen]:
    """Ask each at its time."""
    found: dict[int, Seen] = {}
    began = time.perf_counter()

    def one(number: int, when: float, prompt: str, num_tokens: int) -> None:
        time.sleep(max(0.0, began + when - time.perf_counter()))
        found[number] = ask(url, prompt, num_tokens)

    threads = [threading.Thread(target=one, args=(i, *each)) for i, each in enumerate(asked)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[number] for number in range(len(asked))]


def fit(url: str) -> tuple[ReplicaModel, float]:
    """The model of these replicas, and how many tokens a block of theirs has."""
    ask(url, "warm", 4)
    ask(url, "up", 4)
    one = ask(url, text_of([f"fit {i}" for i in range(12)]), 1)
    alone = ask(url, "alone", DECODED)
    many = together(url, [(0.0, f"many {i}", DECODED) for i in range(ROWS * REPLICAS)])
    pace = statistics.mean((each.whole - each.first) / (DECODED - 1) for each in many)
    model = ReplicaModel.fitted(
        prefill_rate=one.num_prompt_tokens / one.first,
        alone=(DECODED - 1) / (alone.whole - alone.first),
        crowd=ROWS / pace,
        rows=ROWS,
    )
    return model, one.num_prompt_tokens / 12


def simulated(model: ReplicaModel, arrivals: Sequence[Arrival], per_block: float) -> list[Seen]:
    """What the simulation says of the same traffic."""
    scaled = ReplicaModel(
        prefill_rate=model.prefill_rate * TOKENS_PER_BLOCK / per_block,
        step_base=model.step_base,
        step_per_row=model.step_per_row,
        num_blocks=100_000,
    )
    answers = Simulation(scaled, REPLICAS, [KnownBlocks()]).run(arrivals)
    return [
        Seen(
            (each.first_token_time or 0) - each.arrival.time,
            each.end_time - each.arrival.time,
            len(each.arrival.blocks),
            each.num_hit_blocks,
        )
        for each in answers
    ]


def figures(seen: Sequence[Seen]) -> dict[str, float]:
    """What is compared."""
    prompt = sum(each.num_prompt_tokens for each in seen)
    return {
        "blocks cached": sum(each.num_cached_tokens for each in seen) / prompt,
        "first token, mean": statistics.mean(each.first for each in seen),
        "first token, median": statistics.median(each.first for each in seen),
        "whole answer, mean": statistics.mean(each.whole for each in seen),
    }


def main() -> int:
    traffic = Traffic(
        conversations_per_second=2, seconds=16, num_tenants=8, max_turns=3, mean_output_tokens=60
    )
    arrivals = [each for each in traffic.arrivals() if each.time < 22]
    asked = [(each.time, text_of(each.blocks), each.num_output_tokens) for each in arrivals]
    options = ("--max-model-len", "4096", "--kv-cache-memory", "1GiB")
    with fleet_process(Path(sys.argv[1]), *options) as fleet:
        model, per_block = fit(fleet.url)
        real = figures(together(fleet.url, asked))
    made = figures(simulated(model, arrivals, per_block))
    say = sys.stdout.write
    say(f"{len(arrivals)} requests; {model}; {per_block:.1f} tokens a block\n")
    for name, value in real.items():
        say(f"| {name} | {value:.3f} | {made[name]:.3f} | {made[name] / value - 1:+.0%} |\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
