"""Traces: an OpenTelemetry span for each HTTP exchange, and below it where its time went.

    POST /v1/chat/completions                 SERVER, a child of the client's own span
      chat SmolLM2-135M-Instruct              INTERNAL, with the conventions' attributes
        queue | prefill | decode              of each request that the engine ran

The engine knows nothing of it: its times are read from the timeline when a request has ended. No
text of prompts or answers is recorded. Belongs to the event loop; there only if traces are on.
"""

from __future__ import annotations

from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind, StatusCode, Tracer
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.api.observability import genai
from server.api.transport.exchange import CURRENT, TraceFacts
from server.engine.timeline import RequestRecord


class Traces:
    """Begins and ends the span of each exchange that is answered with generated text.

    Args:
        app: What answers.
        tracer: Makes the spans.
    """

    def __init__(self, app: ASGIApp, *, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the exchange."""
        exchange = CURRENT.get()
        if scope["type"] != "http" or scope["method"] != "POST" or exchange is None:
            await self._app(scope, receive, send)
            return
        facts = exchange.trace = TraceFacts()
        parent = propagate.extract(dict(Headers(scope=scope)))
        name = f"{scope['method']} {scope['path']}"
        with self._tracer.start_as_current_span(name, context=parent, kind=SpanKind.SERVER) as span:
            exchange.facts["trace_id"] = trace.format_trace_id(span.get_span_context().trace_id)
            propagate.inject(facts.headers)

            async def passing(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute(genai.HTTP_STATUS, message["status"])
                    if message["status"] >= 500:
                        span.set_status(StatusCode.ERROR)
                    MutableHeaders(scope=message).update(facts.headers)
                await send(message)

            span.set_attributes({genai.HTTP_METHOD: "POST", genai.URL_PATH: scope["path"]})
            try:
                await self._app(scope, receive, passing)
            finally:
                self._describe(facts)

    def _describe(self, facts: TraceFacts) -> None:
        """Make the spans of what the engine did, if it did anything."""
        records = [each for each in facts.records if each.finished_time is not None]
        if not records:
            return
        attributes = facts.attributes | _outcome(records)
        operation, model = attributes[genai.OPERATION_NAME], attributes[genai.REQUEST_MODEL]
        began = min(record.arrival_time for record in records)
        ended = max(record.finished_time or began for record in records)
        span = self._tracer.start_span(
            f"{operation} {model}",
            kind=SpanKind.INTERNAL,
            start_time=facts.nanoseconds(began),
            attributes=attributes,
        )
        if genai.ERROR_TYPE in attributes:
            span.set_status(StatusCode.ERROR)
        context = trace.set_span_in_context(span)
        for record in records:
            for name, start, end in _phases(record):
                self._tracer.start_span(
                    name, context=context, start_time=facts.nanoseconds(start)
                ).end(facts.nanoseconds(end))
        span.end(facts.nanoseconds(ended))


def _outcome(records: list[RequestRecord]) -> genai.Attributes:
    """What came of the requests of one call."""
    reasons = [str(record.finish_reason) for record in records if record.finish_reason]
    failed = {"error", "refused"} & set(reasons)
    first = [each.first_token_time for each in records if each.first_token_time is not None]
    found: genai.Attributes = {
        genai.RESPONSE_FINISH_REASONS: reasons,
        genai.USAGE_INPUT_TOKENS: records[0].num_prompt_tokens,
        genai.USAGE_CACHE_READ_TOKENS: records[0].num_cached_tokens,
        genai.USAGE_OUTPUT_TOKENS: sum(record.num_output_tokens for record in records),
    }
    if first:
        arrival = min(record.arrival_time for record in records)
        found[genai.RESPONSE_TIME_TO_FIRST_CHUNK] = min(first) - arrival
    return found | ({genai.ERROR_TYPE: min(failed)} if failed else {})


def _phases(record: RequestRecord) -> list[tuple[str, float, float]]:
    """Where the time of a request went: each phase with its begin and its end."""
    ended = record.finished_time
    assert ended is not None, "only what has ended is described"
    started = ended if record.started_time is None else record.started_time
    first = ended if record.first_token_time is None else record.first_token_time
    phases = [("queue", record.arrival_time, started)]
    if started < ended:
        phases += [("prefill", started, first), ("decode", first, ended)]
    return phases
