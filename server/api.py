"""Api: the handlers of all routes, and the order of their checks.

A generation request passes: body read, JSON parsed, fields judged, types checked, queue limit,
tokenised, context checked; only then does the engine see it. The event loop owns connections, the
engine owns requests; nothing here computes for long on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from server import answers, schemas
from server.admission import Admission, Ticket
from server.call import Call
from server.config import ServerConfig
from server.connection import EventStream, read_body, unless_gone
from server.deadline import within
from server.errors import (
    EngineDeadError,
)
from server.fields import Endpoint, judge
from server.input_processor import InputProcessor
from server.json_body import parse_object
from server.metrics import Metrics
from server.protocols import Engine
from server.request import RequestOutput
from server.sampling_inputs import check_token_ids
from server.streaming import ChatWriter, CompletionWriter, Writer, collect, encode, events
from server.version import VERSION

logger = logging.getLogger(__name__)
IGNORED_HEADER = "X-Ignored-Fields"
_INLINE_BYTES = 16_384
"""Bodies up to this size are parsed on the event loop; longer ones in a thread."""
_JSON = "application/json"
_MAX_HEADER = 1000
_MAX_REPORTED = 1000
_READY = "READY"

Parsed = TypeVar("Parsed", bound=schemas.Body)


class Api:
    """The handlers of all routes.

    Args:
        engine: Runs the requests.
        config: The limits.
        metrics: Told what is asked for and what comes of it.
    """

    def __init__(self, engine: Engine, config: ServerConfig, metrics: Metrics) -> None:
        self._engine = engine
        self._config = config
        self._metrics = metrics
        self._admission = Admission(config.max_num_seqs + config.max_queue)
        self._started = int(time.time())
        self._processor: InputProcessor | None = None
        self._reported: set[tuple[str, str]] = set()

    async def completions(self, request: Request) -> Response:
        """Continue prompts."""
        body, ignored = await self._read(request, schemas.CompletionBody, Endpoint.COMPLETIONS)
        ticket = self._admission.enter(body.n * schemas.num_prompts(body))
        return await self._generate(
            request,
            lambda: self._inputs.completion(body),
            CompletionWriter,
            ticket=ticket,
            ignored=ignored,
        )

    async def chat_completions(self, request: Request) -> Response:
        """Answer a chat."""
        body, ignored = await self._read(request, schemas.ChatBody, Endpoint.CHAT)
        ticket = self._admission.enter(body.n)
        return await self._generate(
            request, lambda: self._inputs.chat(body), ChatWriter, ticket=ticket, ignored=ignored
        )

    async def models(self) -> Response:
        """List the served model."""
        return _json(answers.ModelList(object="list", data=[self._card()]))

    async def model(self, request: Request) -> Response:
        """Describe the served model."""
        self._inputs.check_model(request.path_params["model_id"])
        return _json(self._card())

    async def tokenize(self, request: Request) -> Response:
        """Turn text or messages into token ids, as a generation request would count them."""
        body, ignored = await self._read(request, schemas.TokenizeBody, Endpoint.TOKENIZE)
        tokens = await asyncio.to_thread(self._inputs.tokenize, body)
        answer = answers.Tokens(
            tokens=tokens, count=len(tokens), max_model_len=self._engine.info.max_model_len
        )
        if body.return_token_strs:
            names = [self._engine.tokenizer.id_to_token(token) or "" for token in tokens]
            answer = answers.Tokens(**answer.model_dump(exclude_unset=True), token_strs=names)
        return _json(answer, ignored)

    async def detokenize(self, request: Request) -> Response:
        """Turn token ids into text."""
        body, ignored = await self._read(request, schemas.DetokenizeBody, Endpoint.DETOKENIZE)
        self._inputs.check_model(body.model)
        check_token_ids(body.tokens, self._engine.info, "tokens")
        text = await asyncio.to_thread(
            self._engine.tokenizer.decode,
            body.tokens,
            skip_special_tokens=body.skip_special_tokens,
        )
        return _json(answers.Text(prompt=text), ignored)

    async def tokenizer_info(self) -> Response:
        """Say what evaluation tools ask of a tokenizer."""
        engine, tokenizer = self._running(), self._engine.tokenizer
        bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
        return _json(
            answers.TokenizerInfo(
                vocab_size=engine.info.vocab_size,
                model_max_length=engine.info.max_model_len,
                bos_token=None if bos is None else tokenizer.id_to_token(bos),
                bos_token_id=bos,
                eos_token=None if eos is None else tokenizer.id_to_token(eos),
                eos_token_id=eos,
                eos_token_ids=sorted(engine.info.eos_token_ids),
                has_chat_template=engine.chat_template is not None,
            )
        )

    async def health(self) -> Response:
        """Answer 200 unless the engine is dead."""
        status = self._engine.status.name
        if status == "DEAD":
            raise EngineDeadError(self._engine.error or "The engine is dead.")
        return _json(answers.Status(status=status.lower()))

    async def ready(self) -> Response:
        """Answer 200 while requests are accepted."""
        return _json(answers.Status(status=self._running().status.name.lower()))

    async def metrics(self, request: Request) -> Response:
        """Show Prometheus what there is to see."""
        text, media_type = self._metrics.render(request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": media_type})

    async def version(self) -> Response:
        """Say which version this is."""
        return _json(answers.Version(version=VERSION))

    @property
    def _inputs(self) -> InputProcessor:
        """Checks inputs; made when the first is needed, as the model must be loaded."""
        if self._processor is None:
            engine = self._running()
            self._processor = InputProcessor(
                engine.info,
                engine.tokenizer,
                engine.chat_template,
                tool_call_parser=self._config.tool_call_parser,
            )
        return self._processor

    def _running(self) -> Engine:
        """The engine, if it takes requests.

        Raises:
            EngineDeadError: It is loading, draining or dead.
        """
        status = self._engine.status.name
        if status == _READY:
            return self._engine
        code = {"LOADING": "loading", "DRAINING": "draining"}.get(status)
        words = {"LOADING": "The model is still loading.", "DRAINING": "The server is draining."}
        raise EngineDeadError(
            words.get(status) or self._engine.error or "The engine is dead.", code=code
        )

    async def _read(
        self, request: Request, schema: type[Parsed], endpoint: Endpoint
    ) -> tuple[Parsed, tuple[str, ...]]:
        """Read and check a body; returns it with the names of the fields that were ignored."""
        self._running()
        raw = await read_body(request, self._config.max_body_bytes)
        if len(raw) > _INLINE_BYTES:
            body, ignored = await asyncio.to_thread(self._parse, raw, schema, endpoint)
        else:
            body, ignored = self._parse(raw, schema, endpoint)
        self._report(ignored, request.headers.get("user-agent", ""))
        return body, ignored

    def _parse(
        self, raw: bytes, schema: type[Parsed], endpoint: Endpoint
    ) -> tuple[Parsed, tuple[str, ...]]:
        judged = judge(
            parse_object(raw),
            endpoint,
            max_model_len=self._engine.info.max_model_len,
            reject_unknown=self._config.unknown_fields == "reject",
        )
        body = schemas.parse(schema, judged.values)
        return body, (*judged.ignored, *self._inputs.ignored_hints(body))

    def _report(self, ignored: Sequence[str], user_agent: str) -> None:
        """Count the ignored fields, and log each once for each client program."""
        self._metrics.num_ignored_fields += len(ignored)
        for name in ignored:
            key = (_header_name(name), user_agent[:200])
            if key not in self._reported and len(self._reported) < _MAX_REPORTED:
                self._reported.add(key)
                logger.info("ignored the field %s sent by %r", *key)

    async def _generate(
        self,
        request: Request,
        prepare: Callable[[], Call],
        kind: type[Writer],
        *,
        ticket: Ticket,
        ignored: tuple[str, ...],
    ) -> Response:
        """Run a call to its answer, or to the first event of its stream.

        The ticket is given back when nothing more will be sent.
        """
        try:
            call = await asyncio.to_thread(prepare)
            writer = kind(call, self._engine.tokenizer)
            outputs = self._outputs(call)
            if not call.options.stream:
                raw = await unless_gone(request.receive, collect(writer, outputs))
                ticket.release()
                return Response(raw, media_type=_JSON, headers=_ignored_header(ignored))
            rest = events(writer, outputs, keep_alive=self._config.keep_alive_interval)
            first = await unless_gone(request.receive, anext(rest))
        except BaseException:
            ticket.release()
            raise
        return EventStream(first, rest, headers=_ignored_header(ignored), on_end=ticket.release)

    def _outputs(self, call: Call) -> AsyncGenerator[RequestOutput, None]:
        """What the engine brings for a call, counted, within the time it is given."""
        outputs = self._metrics.requests.watch(call, self._engine.generate(call.requests))
        limit = self._config.request_timeout
        return outputs if limit is None else within(limit, outputs)

    def _card(self) -> answers.ModelCard:
        info = self._running().info
        return answers.ModelCard(
            id=info.model_name,
            object="model",
            created=self._started,
            owned_by="kvserve",
            root=info.root,
            parent=None,
            max_model_len=info.max_model_len,
            architecture=info.architecture,
            dtype=info.dtype,
            device=info.device,
            num_parameters=info.num_parameters,
            vocab_size=info.vocab_size,
            has_chat_template=self._engine.chat_template is not None,
        )


def _json(answer: BaseModel, ignored: Sequence[str] = ()) -> Response:
    return Response(encode(answer), media_type=_JSON, headers=_ignored_header(ignored))


def _header_name(name: str) -> str:
    """A field's name as a header may carry it."""
    return re.sub(r"[^A-Za-z0-9_.\[\]]", "", name[:100])


def _ignored_header(ignored: Sequence[str]) -> dict[str, str]:
    """The header that names what was ignored, about a kilobyte at most."""
    names = ", ".join(filter(None, map(_header_name, ignored)))
    if len(names) > _MAX_HEADER:
        names = names[:_MAX_HEADER].rpartition(", ")[0]
    return {IGNORED_HEADER: names} if names else {}
