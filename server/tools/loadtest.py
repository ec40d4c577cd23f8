"""A load test from start to end: find the model, warm up, run each level, report and draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import httpx

from server.errors import ConfigurationError
from server.tools.load_generator import Load, LoadGenerator, LoadResult
from server.tools.load_report import Limits, report
from server.tools.stream_client import Endpoint, RequestRecord, StreamClient
from server.tools.workload import Prompt

OnRecord = Callable[[RequestRecord], None]
Report = dict[str, object]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadTest:
    """What to test, and how."""

    url: str
    loads: Sequence[Load]
    """Levels of load, one after the other."""
    workload: Callable[[int], Sequence[Prompt]]
    """Makes the prompts of a level from a seed, so that no level finds those of another cached."""
    endpoint: Endpoint = "chat"
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

    async def run(
        self,
        *,
        on_level: Callable[[Load], OnRecord],
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> list[tuple[LoadResult, Report]]:
        """Run every level.

        Args:
            on_level: Told of each level as it starts; what it returns is told of each request.
            transport: What carries the requests, for tests.

        Raises:
            ConfigurationError: The server cannot be reached, or fails the warm-up.
        """
        async with self._connect(transport) as client:
            model = self.model or await _first_model(client)
            sender = StreamClient(client, model=model, endpoint=self.endpoint, options=self.options)
            await self._warm_up(sender)
            levels = []
            for number, load in enumerate(self.loads):
                seed = self.seed + number
                generator = LoadGenerator(sender, on_record=on_level(load))
                result = await generator.run(self.workload(seed), load, seed=seed)
                facts = {
                    "endpoint_type": self.endpoint,
                    "base_url": str(client.base_url),
                    "model_id": model,
                    "tokenizer_id": model,
                }
                levels.append((result, report(result, limits=self.limits, facts=facts)))
            return levels

    def _connect(self, transport: httpx.AsyncBaseTransport | None) -> httpx.AsyncClient:
        """A client that opens as many connections as it needs and keeps them."""
        headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        return httpx.AsyncClient(
            base_url=self.url.rstrip("/").removesuffix("/v1"),
            headers=headers,
            timeout=self.timeout,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            transport=transport,
        )

    async def _warm_up(self, sender: StreamClient) -> None:
        prompts = self.workload(self.seed - 1)
        for index in range(self.warm_up):
            record = RequestRecord(intended=0.0)
            await sender.send(prompts[index % len(prompts)], record)
            if record.error is not None:
                raise ConfigurationError(f"the warm-up failed with {record.error}: {record.detail}")


async def _first_model(client: httpx.AsyncClient) -> str:
    """The model the server names first."""
    try:
        response = await client.get("/v1/models")
        response.raise_for_status()
        return str(response.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise ConfigurationError(
            f"{client.base_url} does not name its models: {error or type(error).__name__}. "
            "Is the server running? Does it need --api-key? Else name one with --model."
        ) from error
