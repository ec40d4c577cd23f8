"""server.api.observability.traces: what an exporter gets of an exchange, and what it never gets."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from engines import load_engine
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from server.api.app import create_app
from server.config import ServerConfig
from server.engine.async_engine import AsyncEngine

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CHAT = "/v1/chat/completions"
BODY = {
    "messages": [{"role": "user", "content": "a secret"}], "max_tokens": 6, "seed": 3, "n": 2,
    "ignore_eos": True,
}  # fmt: skip


def traced(
    path: Path, *calls: tuple[str, dict[str, Any]], **options: Any
) -> tuple[list[ReadableSpan], list[httpx.Response]]:
    """The spans of some requests, in the order in which they ended, and the answers."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def run() -> list[httpx.Response]:
        engine = AsyncEngine(lambda: load_engine(path))
        await engine.start()
        app = create_app(engine, ServerConfig(), tracer=provider.get_tracer("test"))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answers = [await client.post(where, json=body, **options) for where, body in calls]
        await engine.stop(5)
        return answers

    answers = asyncio.run(run())
    return list(exporter.get_finished_spans()), answers


@pytest.fixture(scope="module")
def spans(checkpoint) -> dict[str, list[ReadableSpan]]:
    """The spans of one call of two choices, by name."""
    found, _ = traced(checkpoint("rand-llama-tied"), (CHAT, BODY), headers={"traceparent": PARENT})
    return {name: [s for s in found if s.name == name] for name in {s.name for s in found}}


def test_an_exchange_is_a_child_of_its_client(spans):
    """The server's span belongs to the trace that the client names."""
    (server,) = spans[f"POST {CHAT}"]
    assert server.kind is SpanKind.SERVER
    assert f"{server.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{server.parent.span_id:016x}" == PARENT.split("-")[2]
    assert server.attributes["http.response.status_code"] == 200


def test_a_call_bears_the_names_of_the_conventions(spans):
    """What was asked for, used and said is there under the standard names."""
    (server,) = spans[f"POST {CHAT}"]
    (call,) = spans["chat rand-llama-tied"]
    assert call.parent.span_id == server.context.span_id
    facts = dict(call.attributes)
    assert facts.pop("gen_ai.response.id").startswith("chatcmpl-")
    assert facts.pop("gen_ai.response.time_to_first_chunk") > 0
    assert facts.pop("gen_ai.usage.input_tokens") > 10
    assert facts == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "kvserve",
        "gen_ai.request.model": "rand-llama-tied",
        "gen_ai.response.model": "rand-llama-tied",
        "gen_ai.request.max_tokens": 6,
        "gen_ai.request.temperature": 1.0,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 0,
        "gen_ai.request.seed": 3,
        "gen_ai.request.stream": False,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.stop_sequences": (),
        "gen_ai.response.finish_reasons": ("length", "length"),
        "gen_ai.usage.output_tokens": 12,
        "gen_ai.usage.cache_read.input_tokens": 0,
    }


def test_the_phases_of_each_request_follow_each_other(spans):
    """Queue, prefill and decode of both choices lie within the call, without gaps."""
    (call,) = spans["chat rand-llama-tied"]
    for queue, prefill, decode in zip(
        spans["queue"], spans["prefill"], spans["decode"], strict=True
    ):
        assert call.start_time <= queue.start_time <= queue.end_time == prefill.start_time
        assert prefill.end_time == decode.start_time <= decode.end_time <= call.end_time
        assert {each.parent.span_id for each in (queue, prefill, decode)} == {call.context.span_id}
    assert len(spans["queue"]) == 2


def test_no_text_is_recorded(spans):
    """Neither prompts nor answers are in any span."""
    said = json.dumps([str(dict(s.attributes)) for found in spans.values() for s in found])
    assert "secret" not in said


def test_cached_tokens_and_streams_are_told(checkpoint):
    """A second, streamed call says what it found in the cache; each answer names its trace."""
    body = BODY | {"n": 1, "stream": True}
    body["messages"] = [{"role": "user", "content": "long " * 20}]
    spans, answers = traced(checkpoint("rand-llama-tied"), (CHAT, body), (CHAT, body))
    calls = [s for s in spans if s.name == "chat rand-llama-tied"]
    cached = [s.attributes["gen_ai.usage.cache_read.input_tokens"] for s in calls]
    assert cached[0] == 0 < cached[1]
    assert all(s.attributes["gen_ai.request.stream"] for s in calls)
    servers = [s for s in spans if s.kind is SpanKind.SERVER]
    assert [answer.headers["traceparent"].split("-")[1] for answer in answers] == [
        f"{s.context.trace_id:032x}" for s in servers
    ]


def test_what_was_refused_has_no_call(checkpoint):
    """A request that never ran is a server's span with its status and nothing below."""
    spans, _ = traced(checkpoint("rand-llama-tied"), (CHAT, BODY | {"n": 0}))
    (server,) = spans
    assert server.attributes["http.response.status_code"] == 400
