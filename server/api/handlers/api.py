"""Api: the handlers of the routes in their own form: completions, chat, tokens, models, states.

What becomes of a request between its bytes and its answer is server.api.handlers.dispatcher's.
"""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from server.api.answers.chat_writer import ChatWriter
from server.api.answers.completion_writer import CompletionWriter
from server.api.dialects.response_answers import InputTokens
from server.api.fields.fields import Endpoint
from server.api.handlers.dispatcher import Dispatcher, json_answer
from server.api.inputs.sampling_fields import check_token_ids
from server.api.observability.metrics import Metrics
from server.api.protocols import EngineClient
from server.api.schemas import requests as schemas
from server.api.schemas import wire_types
from server.api.transport.wire import encode, encode_patiently
from server.api.transport.workers import Workers
from server.config import ServerConfig
from server.engine_status import EngineStatus
from server.errors import EngineUnavailableError
from server.version import VERSION


class Api:
    """Handlers of completions, chats, tokens, models and states.

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
        self._metrics = metrics
        self._started = int(time.time())
        self.dispatcher = Dispatcher(engine, config, metrics, workers=workers)
        """Shared with the handlers of other forms."""

    async def completions(self, request: Request) -> Response:
        """Continue prompts."""
        asked = await self.dispatcher.read(request, schemas.CompletionBody, Endpoint.COMPLETIONS)
        return await self.dispatcher.generate(
            request,
            asked,
            lambda: self.dispatcher.inputs.completion(asked.body),
            kind=CompletionWriter,
            num_sequences=asked.body.n * schemas.num_prompts(asked.body),
        )

    async def chat_completions(self, request: Request) -> Response:
        """Answer a chat."""
        asked = await self.dispatcher.read(request, schemas.ChatBody, Endpoint.CHAT)
        return await self.dispatcher.generate(
            request,
            asked,
            lambda: self.dispatcher.inputs.chat(asked.body),
            kind=ChatWriter,
            num_sequences=asked.body.n,
        )

    async def chat_tokens(self, request: Request) -> Response:
        """Count the tokens of a chat's prompt."""
        asked = await self.dispatcher.read(request, schemas.ChatBody, Endpoint.CHAT)
        count = await self.dispatcher.prepare(
            request, asked, lambda: self.dispatcher.inputs.count_tokens(asked.body)
        )
        answer = InputTokens(object="response.input_tokens", input_tokens=count)
        return json_answer(answer, asked.ignored)

    async def models(self) -> Response:
        """List the served model."""
        return json_answer(wire_types.ModelList(object="list", data=[self._card()]))

    async def model(self, request: Request) -> Response:
        """Describe the served model."""
        self.dispatcher.inputs.check_model(request.path_params["model_id"])
        return json_answer(self._card())

    async def tokenize(self, request: Request) -> Response:
        """Turn text or messages into token ids, as a generation request would count them."""
        asked = await self.dispatcher.read(request, schemas.TokenizeBody, Endpoint.TOKENIZE)
        raw = await self.dispatcher.prepare(
            request, asked, lambda: encode_patiently(self._tokens(asked.body))
        )
        return json_answer(raw, asked.ignored)

    def _tokens(self, body: schemas.TokenizeBody) -> wire_types.Tokens:
        """The tokens of a body, which may be millions: to be made in a thread."""
        tokens = self.dispatcher.inputs.tokenize(body)
        limit = self._engine.info.max_model_len
        if not body.return_token_strs:
            return wire_types.Tokens(tokens=tokens, count=len(tokens), max_model_len=limit)
        names = [self._engine.tokenizer.id_to_token(token) or "" for token in tokens]
        return wire_types.Tokens(
            tokens=tokens, count=len(tokens), max_model_len=limit, token_strs=names
        )

    async def detokenize(self, request: Request) -> Response:
        """Turn token ids into text."""
        asked = await self.dispatcher.read(request, schemas.DetokenizeBody, Endpoint.DETOKENIZE)
        raw = await self.dispatcher.prepare(request, asked, lambda: encode(self._text(asked.body)))
        return json_answer(raw, asked.ignored)

    def _text(self, body: schemas.DetokenizeBody) -> wire_types.Text:
        """The text of a body, which may be megabytes: to be made in a thread."""
        self.dispatcher.inputs.check_model(body.model)
        check_token_ids(body.tokens, self._engine.info, "tokens")
        text = self._engine.tokenizer.decode(
            body.tokens, skip_special_tokens=body.skip_special_tokens
        )
        return wire_types.Text(prompt=text)

    async def tokenizer_info(self) -> Response:
        """Say what evaluation tools ask of a tokenizer."""
        engine, tokenizer = self.dispatcher.running(), self._engine.tokenizer
        bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
        return json_answer(
            wire_types.TokenizerInfo(
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
        status = self._engine.status
        if status is EngineStatus.DEAD:
            raise EngineUnavailableError(self._engine.error or "The engine is dead.")
        return json_answer(wire_types.Status(status=status.value))

    async def ready(self) -> Response:
        """Answer 200 while requests are accepted."""
        return json_answer(wire_types.Status(status=self.dispatcher.running().status.name.lower()))

    async def metrics(self, request: Request) -> Response:
        """Show Prometheus what there is to see."""
        text, media_type = self._metrics.render(request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": media_type})

    async def version(self) -> Response:
        """Say which version this is."""
        return json_answer(wire_types.Version(version=VERSION))

    def _card(self) -> wire_types.ModelCard:
        info = self.dispatcher.running().info
        return wire_types.ModelCard(
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
            num_layers=info.num_layers,
            num_heads=info.num_heads,
            has_chat_template=self._engine.chat_template is not None,
            default_sampling=dict(info.default_params),
        )
