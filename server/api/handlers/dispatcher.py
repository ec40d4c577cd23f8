"""Dispatcher: from a request's bytes to a checked body, and from a call to its answer.

What the handlers of api.py and other_forms.py share. A generation request passes: body read, JSON
parsed, fields judged, types checked, queue limit, tokenised, context checked; only then does the
engine see it. The event loop owns connections, the engine owns requests; nothing here computes for
long on the event loop.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from server.api.answers.streaming import collect, events
from server.api.answers.writer import Writer
from server.api.dialects.dialect import Dialect, Offer, offer_all
from server.api.fields.fields import Endpoint, judge
from server.api.generation_call import GenerationCall
from server.api.handlers.admission import Admission, Ticket
from server.api.inputs.input_processor import InputProcessor
from server.api.observability.metrics import Metrics
from server.api.protocols import EngineClient, TokenizerLike
from server.api.schemas import requests as schemas
from server.api.transport.connection import read_body, unless_gone
from server.api.transport.deadline import within
from server.api.transport.event_stream import EventStream, KeepAlive, begin, error_event
from server.api.transport.json_body import parse_object
from server.api.transport.wire import KEEP_ALIVE, encode
from server.api.transport.workers import Pool, Workers
from server.config import ServerConfig
from server.engine_status import EngineStatus
from server.errors import EngineUnavailableError
from server.request import RequestOutput

logger = logging.getLogger(__name__)
IGNORED_HEADER = "X-Ignored-Fields"
_INLINE_BYTES = 16_384
"""Bodies up to this size are parsed on the event loop; longer ones in a thread."""
_JSON = "application/json"
_MAX_HEADER = 1000
_MAX_NAMED = 400
"""More ignored fields than a header has room for are not named."""
_MAX_REPORTED = 1000
_NOT_YET: Mapping[EngineStatus, str] = {
    EngineStatus.LOADING: "The model is still loading.",
    EngineStatus.DRAINING: "The server is draining.",
}
"""Why no request is taken now."""

Parsed = TypeVar("Parsed", bound=schemas.Body)
Read = TypeVar("Read")
Result = TypeVar("Result")
WriterFactory = Callable[[GenerationCall, TokenizerLike], Writer]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked(Generic[Read]):
    """A body that was read and checked."""

    body: Read
    ignored: tuple[str, ...]
    """Names of fields that were not looked at."""
    pool: Pool
    """Where what follows from a body of this length is done."""
    dialect: Dialect[Any] | None = None
    """In whose words the client is answered, if not in a chat's."""

    def speak(self, work: Callable[[], Result]) -> Result:
        """Do something; what is wrong is said in the client's words."""
        return work() if self.dialect is None else self.dialect.speak(work)


class Dispatcher:
    """Reads what clients send, and answers with what the engine makes of it.

    Args:
        engine: Runs the requests.
        config: The limits.
        metrics: Told what is asked for and what comes of it.
        workers: Do what takes long.
    """

    def __init__(
        self, engine: EngineClient, config: ServerConfig, metrics: Metrics, *, workers: Workers
    ) -> None:
        self._engine = engine
        self._workers = workers
        self._config = config
        self._metrics = metrics
        self._admission = Admission(config.max_num_seqs + config.max_queue)
        self._processor: InputProcessor | None = None
        self._reported: set[tuple[str, str]] = set()

    @property
    def inputs(self) -> InputProcessor:
        """Checks inputs; made when the first is needed, as the model must be loaded."""
        if self._processor is None:
            engine = self.running()
            self._processor = InputProcessor(
                engine.info,
                engine.tokenizer,
                engine.chat_template,
                grammars=engine.grammars,
                tool_call_parser=self._config.tool_call_parser,
            )
        return self._processor

    def running(self) -> EngineClient:
        """The engine, if it takes requests.

        Raises:
            EngineUnavailableError: It is loading, draining or dead.
        """
        status = self._engine.status
        if status is EngineStatus.READY:
            return self._engine
        if status is EngineStatus.DEAD:
            raise EngineUnavailableError(self._engine.error or "The engine is dead.")
        raise EngineUnavailableError(_NOT_YET[status], code=status.value)

    async def read(
        self,
        request: Request,
        schema: type[Parsed],
        endpoint: Endpoint,
        *,
        max_bytes: int | None = None,
    ) -> Asked[Parsed]:
        """Read and check a body.

        Args:
            request: Whose body it is.
            schema: Its fields, types and bounds.
            endpoint: Its rows in the table of fields.
            max_bytes: A limit instead of the server's.

        Raises:
            ApiError: It cannot be served.
        """
        return await self._read(
            request, lambda raw: self._parse(raw, schema, endpoint), max_bytes=max_bytes
        )

    async def read_in(
        self, dialect: Dialect[Parsed], request: Request
    ) -> Asked[tuple[Parsed, schemas.ChatBody]]:
        """Read a body in another form, and make it the chat that it asks for.

        Raises:
            ApiError: It cannot be served.
        """
        return await self._read(request, lambda raw: self._parse_in(dialect, raw), dialect=dialect)

    async def _read(
        self,
        request: Request,
        parse: Callable[[bytes], tuple[Read, tuple[str, ...]]],
        *,
        dialect: Dialect[Any] | None = None,
        max_bytes: int | None = None,
    ) -> Asked[Read]:
        self.running()
        raw = await read_body(request, max_bytes or self._config.max_body_bytes)
        pool = self._workers.reading(len(raw))
        if len(raw) > _INLINE_BYTES:
            parsing = pool.run(lambda: parse(raw))
            body, ignored = await unless_gone(request.receive, parsing)
        else:
            body, ignored = parse(raw)
        self._report(ignored, request.headers.get("user-agent", ""))
        return Asked(body=body, ignored=ignored, pool=pool, dialect=dialect)

    async def prepare(
        self, request: Request, asked: Asked[Any], work: Callable[[], Result]
    ) -> Result:
        """Do in a thread what follows from a body, for as long as its client waits.

        Raises:
            ApiError: The request cannot be served.
            ClientDisconnect: The client left.
        """
        return await unless_gone(request.receive, asked.pool.run(lambda: asked.speak(work)))

    def _parse(
        self, raw: bytes, schema: type[Parsed], endpoint: Endpoint, offer: Offer = offer_all
    ) -> tuple[Parsed, tuple[str, ...]]:
        values, others = offer(parse_object(raw))
        judged = judge(
            values,
            endpoint,
            works=schema.model_fields.keys(),
            max_model_len=self._engine.info.max_model_len,
            reject_unknown=self._config.unknown_fields == "reject",
        )
        body = schemas.parse(schema, judged.values)
        return body, (*judged.ignored, *others, *self.inputs.ignored_hints(body))

    def _parse_in(
        self, dialect: Dialect[Parsed], raw: bytes
    ) -> tuple[tuple[Parsed, schemas.ChatBody], tuple[str, ...]]:
        body, ignored = self._parse(raw, dialect.schema, dialect.endpoint, dialect.offer)
        chat = dialect.speak(lambda: dialect.to_chat(body))
        return (body, chat), (*ignored, *dialect.fields(self.inputs.ignored_hints(chat)))

    def _report(self, ignored: Sequence[str], user_agent: str) -> None:
        """Count the ignored fields, and log each once for each client program."""
        self._metrics.num_ignored_fields += len(ignored)
        for name in ignored[:_MAX_NAMED]:
            key = (_header_name(name), user_agent[:200])
            if key not in self._reported and len(self._reported) < _MAX_REPORTED:
                self._reported.add(key)
                logger.info("ignored the field %s sent by %r", *key)

    async def generate(
        self,
        request: Request,
        asked: Asked[Any],
        make_call: Callable[[], GenerationCall],
        *,
        kind: WriterFactory,
        num_sequences: int,
    ) -> Response:
        """Run a call to its answer, or to the first event of its stream or a first silence.

        Args:
            request: Whose connection it is.
            asked: What was read from it.
            make_call: Makes the call; runs in a thread.
            kind: Makes what writes the answer.
            num_sequences: How many the call will run, for the queue limit.

        Raises:
            ApiError: It cannot be served, or failed before the first event.
        """
        with self._admission.enter(num_sequences).kept() as ticket:
            call = await self.prepare(request, asked, make_call)
            await unless_gone(request.receive, self._constrain(call, asked))
            writer = kind(call, self._engine.tokenizer)
            outputs = self._outputs(call)
            if call.options.stream:
                parts = events(writer, outputs, self._workers.writing)
                return await self.stream(request, asked, parts, ticket=ticket, writer=writer)
            answer = collect(writer, outputs, self._workers.writing)
            raw = await unless_gone(request.receive, answer)
            ticket.release()
            return json_answer(raw, asked.ignored)

    async def stream(
        self,
        request: Request,
        asked: Asked[Any],
        parts: AsyncGenerator[bytes, None],
        *,
        ticket: Ticket,
        writer: Writer | None = None,
    ) -> Response:
        """Answer with server-sent events; returns with the first of them or at a first silence.

        Args:
            request: Whose connection it is.
            asked: What was read from it.
            parts: The events; closed in the end.
            ticket: Released when nothing more will be sent.
            writer: Spells silences and failures, if they are spelt in a way of their own.

        Raises:
            ApiError: It failed before the first event.
        """
        comment = KEEP_ALIVE if writer is None else writer.keep_alive
        keep_alive = KeepAlive(self._config.keep_alive_interval, comment)
        first = await begin(request.receive, parts, patience=keep_alive.interval)
        return EventStream(
            first,
            parts,
            headers=_ignored_header(asked.ignored),
            keep_alive=keep_alive,
            on_end=ticket.release,
            failure=error_event if writer is None else writer.failure,
        )

    async def _constrain(self, call: GenerationCall, asked: Asked[Any]) -> None:
        """Compile the grammar of a call, if it has one; ends soon after this is cancelled."""
        if call.constraint is None:
            return
        is_known = self.inputs.is_compiled(call)
        pool = asked.pool if is_known else self._workers.compiling
        is_over = threading.Event()
        try:
            await pool.run(lambda: asked.speak(lambda: self.inputs.constrain(call, is_over)))
        finally:
            is_over.set()

    def _outputs(self, call: GenerationCall) -> AsyncGenerator[RequestOutput, None]:
        """The engine's outputs for a call, counted, until the request timeout."""
        outputs = self._metrics.requests.watch(call, self._engine.generate(call.requests))
        limit = self._config.request_timeout
        return outputs if limit is None else within(limit, outputs)


def json_answer(answer: BaseModel | bytes, ignored: Sequence[str] = ()) -> Response:
    """A whole answer that needed no generation, encoded already or not."""
    raw = answer if isinstance(answer, bytes) else encode(answer)
    return Response(raw, media_type=_JSON, headers=_ignored_header(ignored))


def _header_name(name: str) -> str:
    """A field's name as a header may carry it."""
    return re.sub(r"[^A-Za-z0-9_.\[\]]", "", name[:100])


def _ignored_header(ignored: Sequence[str]) -> dict[str, str]:
    """The header that names what was ignored, about a kilobyte at most."""
    names = ", ".join(filter(None, map(_header_name, ignored[:_MAX_NAMED])))
    if len(names) > _MAX_HEADER:
        names = names[:_MAX_HEADER].rpartition(", ")[0]
    return {IGNORED_HEADER: names} if names else {}
