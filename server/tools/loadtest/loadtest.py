"""A load test from start to end: find the model, warm up, run each level, report and draw."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

from server.errors import ConfigurationError
from server.tools.loadtest.http_client import HttpClient
from server.tools.loadtest.http_connection import ExchangeError
from server.tools.loadtest.load_generator import Load, LoadGenerator, LoadResult
from server.tools.loadtest.load_report import Limits, report
from server.tools.loadtest.stream_client import EndpointName, StreamClient, StreamRecord
from server.tools.loadtest.workload import Prompt

OnRecord = Callable[[StreamRecord], None]
Report = dict[str, object]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadTest:
    """What to test, and how."""

    url: str
    loads: Sequence[Load]
    """Levels of load, one after the other."""
    workload: Callable[[int], Sequence[Prompt]]
    """Makes the prompts of a level from a seed, so that no level finds those of another cached."""
    endpoint: EndpointName = "chat"
    model: str | None = None
    """None is the first that the server names."""
    api_key: str | None = None
    warm_up: int = 0
    """Requests, one after the other, before anything is measured."""
    timeout: float = 600.0
    """Seconds without a byte after which a request has failed."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Further fields of each request."""
    limits: Limits = field(default_factory=dict)
    seed: int = 0

    async def run(self, *, on_level: Callable[[Load], OnRecord]) -> list[tuple[LoadResult, Report]]:
        """Run every level; a run that is cancelled ends with what was measured until then.

        Args:
            on_level: Told of each level as it starts; what it returns is told of each request.

        Raises:
            ConfigurationError: The server cannot be reached, or fails the warm-up.
        """
        async with self._client() as http:
            model = self.model or await _first_model(http)
            sender = StreamClient(http, model=model, endpoint=self.endpoint, options=self.options)
            await self._warm_up(sender)
            levels = []
            for number, load in enumerate(self.loads):
                seed = self.seed + number
                generator = LoadGenerator(sender, on_record=on_level(load))
                result = await generator.run(self.workload(seed), load, seed=seed)
                facts = {
                    "endpoint_type": self.endpoint,
                    "base_url": http.url,
                    "model_id": model,
                    "tokenizer_id": model,
                }
                levels.append((result, report(result, limits=self.limits, facts=facts)))
                if result.num_unfinished:
                    break
            return levels

    def _client(self) -> HttpClient:
        headers = {"Accept-Encoding": "identity"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        url = self.url.rstrip("/").removesuffix("/v1")
        return HttpClient(url, headers=headers, timeout=self.timeout)

    async def _warm_up(self, sender: StreamClient) -> None:
        prompts = self.workload(self.seed - 1)
        for index in range(self.warm_up):
            record = StreamRecord()
            await sender.send(sender.body(prompts[index % len(prompts)]), record)
            if record.error is not None:
                raise ConfigurationError(f"the warm-up failed with {record.error}: {record.detail}")


async def _first_model(http: HttpClient) -> str:
    """The model the server names first."""
    try:
        status, body = await http.get("/v1/models")
        if status == HTTPStatus.OK:
            return str(json.loads(body)["data"][0]["id"])
        why = f"HTTP {status}"
    except ExchangeError as error:
        why = f"{error.kind}, {error}"
    except (ValueError, LookupError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"
    raise ConfigurationError(
        f"{http.url} does not name its models ({why}). "
        "Is the server running? Does it need --api-key? Else name one with --model."
    )
