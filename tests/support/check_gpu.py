"""Checks and measures the GPU path on a device; run by .ci/check-gpu.

Correctness comes before speed, and every stage's findings are on disk before the next one begins.
Without CUDA it refuses to start, unless told to rehearse what a CPU can do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from checkpoints import RANDOM_CONFIGS, build, reference, reference_logprobs
from engines import load_engine, make_request, run

from server.config import EngineConfig
from server.engine.loaded_engine import build_engine

REHEARSAL = os.environ.get("REHEARSE") == "1"
DEVICE = "cpu" if REHEARSAL else "cuda"
TOLERANCE = 1e-3
"""Of log-probabilities in float32."""
SIZES = (1, 8) if REHEARSAL else (1, 8, 64, 256)
STEPS = 4 if REHEARSAL else 64
BUDGET_SECONDS = 540.0


def facts() -> Mapping[str, Any]:
    """What the device and the software are."""
    found = {"torch": torch.__version__, "cuda": torch.version.cuda, "device": DEVICE}
    if not REHEARSAL:
        found |= {
            "name": torch.cuda.get_device_name(),
            "capability": torch.cuda.get_device_capability(),
            "memory": torch.cuda.mem_get_info()[1],
        }
    return found


def ceilings() -> Mapping[str, Any]:
    """Bytes a second of a copy, and operations a second of a bfloat16 product."""
    size = 2**20 if REHEARSAL else 2**30
    source = torch.empty(size, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    width = 256 if REHEARSAL else 8192
    a = torch.randn(width, width, device=DEVICE).bfloat16()
    copy = seconds(lambda: target.copy_(source))
    product = seconds(lambda: a @ a)
    return {"copy_bytes_per_second": 2 * size / copy, "flops": 2 * width**3 / product}


def log_probabilities() -> Mapping[str, Any]:
    """The largest difference of prompt scores from transformers, for each family in float32."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in RANDOM_CONFIGS:
            path = build(name, Path(folder))
            ids = [(17 * i + i * i) % 256 for i in range(60)]
            wanted = reference_logprobs(reference(path), ids)
            engine = load_engine(path, device=DEVICE, max_num_batched_tokens=23).engine
            scored = run(engine, [make_request(ids, prompt_logprobs=0, max_tokens=0)])[0]
            pairs = enumerate((scored.prompt_logprobs or [])[1:])
            found[name] = max(
                abs(one.logprob - wanted[position, one.token_id].item())
                for position, one in pairs
                if one is not None
            )
    wrong = {name: error for name, error in found.items() if not error < TOLERANCE}
    assert not wrong, f"too far from transformers: {wrong}"
    return found


def bits() -> Mapping[str, Any]:
    """How far a request's log-probabilities alone are from those in company."""
    with tempfile.TemporaryDirectory() as folder:
        path = build("rand-llama-untied", Path(folder))
        engine = load_engine(path, device=DEVICE).engine
        [alone] = run(engine, [make_request([5, 6, 7], logprobs=0, prefix_cache=False)])
        crowd = [make_request([n, 9, n], prefix_cache=False) for n in range(7)]
        together = run(engine, [make_request([5, 6, 7], logprobs=0, prefix_cache=False), *crowd])
    pairs = list(zip(alone.logprobs, together[0].logprobs, strict=True))
    apart = [abs(one.logprob - other.logprob) for one, other in pairs]
    return {"same_tokens": alone.token_ids == together[0].token_ids, "largest": max(apart)}


def decoding() -> Mapping[str, Any]:
    """Tokens a second of the default model for each number of requests, and its start."""
    started = time.monotonic()
    engine = build_engine(EngineConfig(device=DEVICE, max_num_seqs=max(SIZES))).engine
    found: dict[str, float] = {"seconds_to_start": time.monotonic() - started}
    for size in SIZES:
        requests = [
            make_request([1 + n, 2, 3], max_tokens=STEPS + 4, ignore_eos=True) for n in range(size)
        ]
        for request in requests:
            engine.add(request)
        while any(request.num_output_tokens < 2 for request in requests):
            engine.step()
        begun, before = time.monotonic(), sum(one.num_output_tokens for one in requests)
        while engine.has_work:
            engine.step()
        done = sum(one.num_output_tokens for one in requests) - before
        found[f"tokens_per_second_{size}"] = done / (time.monotonic() - begun)
    return found


def under_load() -> Mapping[str, Any]:
    """What `kvserve bench` measures through a server of its own."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        batches = ",".join(map(str, SIZES))
        command = [
            "-c",
            "from server.cli import main; main()",
            "bench",
            "--device",
            DEVICE,
            "--http",
            "--batch",
            batches,
        ]
        options = ["--prompt", "", "--steps", str(STEPS), "--repeat", "2", "--json", file.name]
        subprocess.run([sys.executable, *command, *options], check=True)
        found: dict[str, Any] = json.loads(Path(file.name).read_text())
    return found


def seconds(body: Callable[[], object], *, repeat: int = 10) -> float:
    """The shortest time of some runs, each waited for."""
    times = []
    for _ in range(repeat):
        started = time.monotonic()
        body()
        if not REHEARSAL:
            torch.cuda.synchronize()
        times.append(time.monotonic() - started)
    return min(times)


def stages() -> Iterator[Callable[[], Mapping[str, Any]]]:
    """In order: what is wrong is known before anything is measured."""
    yield from (facts, log_probabilities, bits, ceilings, decoding, under_load)


def main(file: Path) -> None:
    """Run what the file does not have yet, within the time there is."""
    if not REHEARSAL and not torch.cuda.is_available():
        sys.exit("check-gpu: torch sees no CUDA device (REHEARSE=1 runs it on the CPU)")
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    started = time.monotonic()
    for stage in stages():
        name = stage.__name__
        if name in found:
            continue
        if time.monotonic() - started > BUDGET_SECONDS:
            sys.exit(f"check-gpu: out of time before {name}; run it again to go on")
        found[name] = stage()
        file.write_text(json.dumps(found, indent=1))
        sys.stdout.write(f"{name}: {json.dumps(found[name])[:500]}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
