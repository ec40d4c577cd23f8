"""Engines over small checkpoints, and what requests brought them, put together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from server.config import EngineConfig
from server.engine.engine import Engine
from server.engine.loaded_engine import LoadedEngine, build_engine
from server.request import FinishReason, Logprob, Request, RequestOutput, SamplingParams

_numbers = count()


@dataclass
class Result:
    """Everything one request was given."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    prompt_logprobs: list[Logprob | None] | None = None
    last: RequestOutput | None = None

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.last.finish_reason if self.last else None


def load_engine(path: Path, **options: object) -> LoadedEngine:
    """An engine over a checkpoint, with one thread and a small cache unless told otherwise."""
    defaults = {"threads": 1, "kv_cache_memory": 64 * 2**20}
    return build_engine(EngineConfig(model=str(path), **(defaults | options)))


def make_request(token_ids: Sequence[int], *, request_id: str | None = None, **params) -> Request:
    """A greedy request for 8 tokens unless told otherwise; other names are Request's or params'."""
    names = {"choice", "priority", "cache_salt", "prefix_cache", "use_cache", "arrival_time",
             "earlier_token_ids", "grammar"}  # fmt: skip
    own = {name: params.pop(name) for name in names & params.keys()}
    sampling = SamplingParams(**({"max_tokens": 8, "temperature": 0.0} | params))
    return Request(
        request_id=request_id or f"request-{next(_numbers)}",
        token_ids=list(token_ids),
        params=sampling,
        **own,
    )


def collect(outputs: Iterable[RequestOutput]) -> dict[str, Result]:
    """The outputs of several requests, joined by request."""
    results: dict[str, Result] = {}
    for output in outputs:
        result = results.setdefault(output.request_id, Result())
        assert result.finish_reason is None, "an output came after the last one"
        result.text += output.text
        result.token_ids += output.token_ids
        result.logprobs += output.logprobs
        if output.prompt_logprobs is not None:
            assert result.prompt_logprobs is None, "prompt log-probabilities came twice"
            result.prompt_logprobs = list(output.prompt_logprobs)
        result.last = output
    return results


def run(engine: Engine, requests: Sequence[Request]) -> list[Result]:
    """Run the requests together to their ends, in order."""
    results = collect(engine.generate(requests))
    return [results[request.request_id] for request in requests]
