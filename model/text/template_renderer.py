"""TemplateRenderer: a chat template rendered in a process that can be ended at any time.

Owns the processes: starts them, again after a template had to be ended, and ends them.
Knows Jinja only through model/text/template_sandbox.py, which runs over there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from model.errors import TemplateError

SECONDS = 5.0
"""What a template may take; real ones take milliseconds."""

_PROGRAM = Path(__file__).with_name("template_sandbox.py")


class TemplateLimitError(TemplateError):
    """A template took more than it may; trying it again would take as much."""


class TemplateRenderer:
    """Renders templates; any thread may call it, and none waits for another's rendering.

    There are as many processes as there were threads at the same time; the next one is started
    when it is needed.

    Args:
        seconds: How long one rendering may take.
    """

    def __init__(self, *, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._idle: list[_Renderer] = []

    def check(self, source: str) -> None:
        """Compile a template.

        Raises:
            TemplateError: It is not one.
        """
        self._ask({"source": source})

    def render(self, source: str, variables: Mapping[str, object]) -> str:
        """Render a template with variables that are plain JSON data.

        Raises:
            TemplateError: The template refuses, fails, takes too long or needs too much memory.
        """
        return self._ask({"source": source, "variables": variables})

    def close(self) -> None:
        """End the processes that do nothing; the next rendering starts another."""
        with self._lock:
            idle, self._idle = self._idle, []
        for renderer in idle:
            renderer.end()

    def _ask(self, request: Mapping[str, object]) -> str:
        try:
            line = json.dumps({**request, "seconds": self._seconds}).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise TemplateError(f"the messages are not plain data: {error}") from error
        with self._lock:
            renderer = self._idle.pop() if self._idle else _Renderer(self._seconds)
        try:
            reply = renderer.exchange(line)
        finally:
            with self._lock:
                self._idle.append(renderer)
        if "error" in reply:
            raise TemplateError(reply["error"])
        return reply["text"]


class _Renderer:
    """One process that renders; one thread at a time may use it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[..., _Renderer] | None = None

    def exchange(self, line: bytes) -> dict[str, str]:
        """Send one line and wait for one; the other side ends itself when its time is over."""
        process = self._running()
        try:
            _pipe(process.stdin).write(line)
            _pipe(process.stdin).flush()
            answer = _pipe(process.stdout).readline()
        except OSError:
            answer = b""
        if not answer.endswith(b"\n"):
            self.end()
            if process.returncode == -signal.SIGALRM:
                raise TemplateLimitError(f"it takes longer than {self._seconds:g} s")
            raise TemplateLimitError("its process ended unexpectedly")
        reply: dict[str, str] = json.loads(answer)
        return reply

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.end()
            self._process = subprocess.Popen(  # noqa: S603 - our own program, no shell
                [sys.executable, "-P", "-s", str(_PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,
            )
            self._finalizer = weakref.finalize(self, _end_process, self._process)
        return self._process

    def end(self) -> None:
        """End the process; the next exchange starts another."""
        if self._finalizer is not None:
            self._finalizer()
        self._process = self._finalizer = None


def _environment() -> dict[str, str]:
    """The few variables a Python needs to start and to know the time; no secrets."""
    kept = {name: os.environ[name] for name in ("TZ", "LD_LIBRARY_PATH") if name in os.environ}
    return {**kept, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None, "the process was started with pipes"
    return stream


def _end_process(process: subprocess.Popen[bytes]) -> None:
    """End a process and close its pipes, leaving no zombie."""
    process.poll()
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        try:
            _pipe(stream).close()
        except OSError:  # what was not written yet has no reader any more
            continue
