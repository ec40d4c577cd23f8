"""BenchServer: `kvserve serve` in a process of its own, for what is measured through its socket.

Starts it on the loopback interface with the options of the bench, times its start, and ends it.
What is asked of it is the business of others.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from server.config import EngineConfig
from server.errors import ConfigurationError
from server.tools.loadtest.http_client import HttpClient
from server.tools.loadtest.stream_client import StreamClient, StreamRecord
from server.tools.loadtest.workload import Prompt

_SERVE = "from server.cli import main; main()"
_START_SECONDS = 120
_POLL_SECONDS = 0.02


class BenchServer:
    """A server that lives as long as this is entered.

    Args:
        config: Of the engine.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{self._port}"
        self._model = ""
        self.seconds_to_first_token = 0.0
        """From the start of the process; the files it reads were read a moment ago."""

    def __enter__(self) -> Self:
        """Start it and wait until it has answered.

        Raises:
            ConfigurationError: It does not.
        """
        fields = set(EngineConfig.model_fields)
        chosen = self._config.model_dump(include=fields, exclude_none=True)
        options = {"port": self._port, "host": "127.0.0.1", "access_log": False, **chosen}
        environment = {f"KVSERVE_{name.upper()}": str(value) for name, value in options.items()}
        started = time.monotonic()
        self._process = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-c", _SERVE, "serve", "--log-level", "error"],
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._model = self._wait()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self.seconds_to_first_token = time.monotonic() - started
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the server."""
        self._process.terminate()
        self._process.wait()

    @property
    def processor_seconds(self) -> float | None:
        """Processor time it has used so far; None where the system does not tell."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def connect(self) -> HttpClient:
        """As many connections as needed, without a limit to how long an answer may take."""
        return HttpClient(self._url, timeout=None)

    async def send(self, http: HttpClient, prompt: Prompt, record: StreamRecord) -> StreamRecord:
        """Send a prompt, greedily and to its full length, and fill in its record.

        Raises:
            ConfigurationError: It failed.
        """
        options = {"temperature": 0, "ignore_eos": True}
        client = StreamClient(http, model=self._model, endpoint="completions", options=options)
        await client.send(client.body(prompt), record)
        if record.error not in (None, "empty answer"):
            raise ConfigurationError(f"kvserve over HTTP: {record.error}: {record.detail}")
        return record

    def _wait(self) -> str:
        """The name of the model, once the server has written a first token."""
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end and self._process.poll() is None:
            try:
                if httpx.get(f"{self._url}/ready").is_success:
                    answer = httpx.get(f"{self._url}/v1/models")
                    model = str(answer.json()["data"][0]["id"])
                    body = {"model": model, "prompt": "time", "max_tokens": 1}
                    httpx.post(f"{self._url}/v1/completions", json=body).raise_for_status()
                    return model
            except httpx.TransportError:
                pass
            time.sleep(_POLL_SECONDS)
        raise ConfigurationError("kvserve over HTTP: the server did not start")


def records_of(prompts: Sequence[Prompt]) -> list[StreamRecord]:
    """An empty record for each prompt."""
    return [StreamRecord() for _ in prompts]
