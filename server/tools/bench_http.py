"""HttpContender: the same engine behind its server, in another process, measured by its clients.

Starts `kvserve serve` on the loopback interface with the options of the bench. Streams are opened
together; what counts is the time in which all of them were receiving.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import count
from types import TracebackType
from typing import Self

import httpx

from server.config import EngineConfig
from server.errors import ConfigurationError
from server.tools.bench import Task
from server.tools.stream_client import RequestRecord, StreamClient
from server.tools.workload import Lengths, Prompt, random_prompts

_SERVE = "from server.cli import main; main()"
_START_SECONDS = 120
_MARGIN = 16
"""Tokens beyond those counted, as the streams do not begin and end at one moment."""


class HttpContender:
    """A server that lives as long as the contender is entered.

    Args:
        config: Of the engine.
        steps: About as many tokens of each stream are counted.
    """

    name = "kvserve over HTTP"

    def __init__(self, config: EngineConfig, *, steps: int) -> None:
        self._config = config
        self._steps = steps
        self._numbers = count()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{self._port}"
        self._model = ""

    def __enter__(self) -> Self:
        """Start it and wait until it answers.

        Raises:
            ConfigurationError: It does not.
        """
        fields = set(EngineConfig.model_fields)
        chosen = self._config.model_dump(include=fields, exclude_none=True)
        options = {"port": self._port, "host": "127.0.0.1", "access_log": False, **chosen}
        environment = {f"KVSERVE_{name.upper()}": str(value) for name, value in options.items()}
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

    def measure(self, task: Task) -> float:
        """Tokens per second of all streams together; of a prompt, those read."""
        return asyncio.run(self._measure(task))

    async def _measure(self, task: Task) -> float:
        """Read the prompts first, so that they are found in the cache and all streams begin."""
        output = 1 if task.kind == "prompt" else self._steps + _MARGIN
        lengths = Lengths(input_words=task.context, output_tokens=output)
        prompts = random_prompts(task.batch, lengths, seed=next(self._numbers))
        cold = await self._send([Prompt(prompt.messages, 1) for prompt in prompts])
        if task.kind == "prompt":
            return (cold[0].prompt_tokens or 0) / (cold[0].ended - cold[0].sent)
        return common_rate(await self._send(prompts))

    async def _send(self, prompts: Sequence[Prompt]) -> list[RequestRecord]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self._url, timeout=None, limits=limits) as http:  # noqa: S113 - a slow machine may take its time
            options = {"temperature": 0, "ignore_eos": True}
            client = StreamClient(http, model=self._model, endpoint="completions", options=options)
            records = [RequestRecord(intended=0.0) for _ in prompts]
            await asyncio.gather(*map(client.send, prompts, records))
        for record in records:
            if record.error not in (None, "empty answer"):
                raise ConfigurationError(f"{self.name}: {record.error}: {record.detail}")
        return records

    def _wait(self) -> str:
        """The name of the model, once the server is ready."""
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end and self._process.poll() is None:
            try:
                if httpx.get(f"{self._url}/ready").is_success:
                    answer = httpx.get(f"{self._url}/v1/models")
                    return str(answer.json()["data"][0]["id"])
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise ConfigurationError(f"{self.name}: the server did not start")


def common_rate(records: Sequence[RequestRecord]) -> float:
    """Tokens per second between the first token of the last stream and the end of the first one.

    An event may carry several tokens, or hold one back for a moment: each counts as many as the
    stream had on average.
    """
    assert all(record.arrivals for record in records)
    start = max(record.arrivals[0] for record in records)
    stop = min(record.arrivals[-1] for record in records)
    if stop <= start:
        raise ConfigurationError("the streams did not overlap: measure more --steps")
    tokens = 0.0
    for record in records:
        events = sum(start < arrival <= stop for arrival in record.arrivals)
        tokens += events * record.output_tokens / len(record.arrivals)
    return tokens / (stop - start)
