"""BenchConfig: the options of the benchmark, those of the engine among them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from server.config import EngineConfig


def _batches(text: str) -> str:
    """Refuse what is no list of numbers of requests, each with or without a context."""
    for part in split(text):
        batch, separator, context = part.partition("x")
        for number in (batch, context) if separator else (batch,):
            if not _is_size(number):
                raise ValueError(
                    "must be whole numbers above 0, or two with an x, with commas between"
                )
    return text


def _numbers(text: str) -> str:
    """Refuse what is no list of whole numbers."""
    if not all(map(_is_size, split(text))):
        raise ValueError("must be whole numbers above 0 with commas between")
    return text


def _is_size(text: str) -> bool:
    return text.isdecimal() and int(text) > 0


def split(text: str) -> list[str]:
    """The parts of a list with commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


Batches = Annotated[str, AfterValidator(_batches)]
Numbers = Annotated[str, AfterValidator(_numbers)]


class BenchConfig(EngineConfig):
    """What to measure, and with what."""

    context: Annotated[int, Field(ge=1)] = 128
    """Tokens that each request sees when decoding begins."""
    batch: Batches = "1,2,4,8,16,32"
    """How many requests to decode at once; 8x4096 is 8 that see 4096 tokens each."""
    prompt: Numbers = "512,4096"
    """Lengths of prompts; may be empty."""
    steps: Annotated[int, Field(ge=2)] = 64
    """Decode steps of one measurement."""
    repeat: Annotated[int, Field(ge=1)] = 5
    """How often each thing is measured; the median counts."""
    http: bool = False
    """Measure the same through a server, too."""
    service: bool = False
    """Measure how a server starts and waits, what a cached beginning saves, and how long a
    stream pauses while a long prompt is read."""
    peer_python: Path | None = None
    """Compare with llama.cpp: the Python of an environment that has llama-cpp-python."""
    peer_model: str = ""
    """GGUF files for llama.cpp, with commas between; the same as ours if none."""
    same_file: bool = False
    """Decode one request from each of those files with kvserve, too."""

    @property
    def batches(self) -> list[tuple[int, int]]:
        """Of `batch`: how many requests, and what each sees."""
        found = []
        for part in split(self.batch):
            batch, _, context = part.partition("x")
            found.append((int(batch), int(context or self.context)))
        return found

    @property
    def prompts(self) -> list[int]:
        """Of `prompt`."""
        return list(map(int, split(self.prompt)))

    @property
    def peer_models(self) -> list[Path]:
        """Of `peer_model`."""
        return list(map(Path, split(self.peer_model)))
