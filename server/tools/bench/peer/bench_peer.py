"""PeerContender: another engine in an environment of its own, measured through a small script."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from server.errors import ConfigurationError
from server.tools.bench.bench import Task

SCRIPT = Path(__file__).with_name("llama_peer.py")


class PeerContender:
    """llama.cpp with one model, in a process that lives as long as the contender is entered.

    Args:
        python: The interpreter of an environment with llama-cpp-python.
        model: A GGUF file.
        threads: As many as kvserve uses.
        steps: Decode steps of one measurement.
        script: What answers; tests bring another.
    """

    def __init__(
        self, python: Path, model: Path, *, threads: int, steps: int, script: Path = SCRIPT
    ) -> None:
        self.name = f"llama.cpp {model.stem}"
        self.cost = None
        """Unknown: it may hold the weights in fewer or more bytes."""
        self.version = ""
        self._steps = steps
        self._command = [str(python), str(script), str(model), str(threads)]

    def __enter__(self) -> Self:
        """Start it and wait until the model is loaded.

        Raises:
            ConfigurationError: It does not start.
        """
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the user names the interpreter
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        except OSError as error:
            raise ConfigurationError(f"--peer-python: {error}") from error
        self.version = str(self._receive()["version"])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the process."""
        with self._process:  # closes its input, which ends it, and waits
            pass

    def measure(self, task: Task) -> float:
        """Tokens per second of a task."""
        shape = {"kind": task.kind, "batch": task.batch, "context": task.context}
        line = json.dumps({**shape, "steps": self._steps})
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer = self._receive()["tokens_per_second"]
        assert isinstance(answer, float)
        return answer

    def _receive(self) -> dict[str, object]:
        """The next answer.

        Raises:
            ConfigurationError: The process has ended; its own words are on stderr.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ConfigurationError(f"{self.name} ended with code {self._process.wait()}")
        answer: dict[str, object] = json.loads(line)
        return answer
