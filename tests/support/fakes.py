"""A tokenizer, a template and an engine small enough to read, for tests of the HTTP side.

FakeTokenizer has one token per byte and two control tokens. FakeEngine answers every request with
`reply`, one token per step, as the real engine would: text cut at stop strings, half characters
held back. What a test needs to go wrong it sets by attribute.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence

from model.cost import ForwardCost
from model.errors import TemplateError
from server.engine.cache_snapshot import CacheSnapshot
from server.engine.engine_info import EngineCounts, EngineInfo
from server.engine.grammars.grammar import GrammarCompiler
from server.engine.timeline import Timeline
from server.engine_status import EngineStatus
from server.request import FinishReason, Logprob, Request, RequestOutput

BOS, EOS = 256, 257
SPECIAL = {BOS: b"<bos>", EOS: b"<eos>"}
VOCAB_SIZE = 258
LOGPROB = -0.5
MAX_MODEL_LEN = 512
COST = ForwardCost(
    layer_parameters=1000,
    output_parameters=200,
    weights_bytes=4800,
    cache_bytes_per_token=64,
    attention_width=8,
    windows=(None, 16),
)


class FakeTokenizer:
    """Ids are bytes; 256 begins a text and 257 ends it."""

    vocab_size = VOCAB_SIZE
    bos_token_id = BOS
    eos_token_id = EOS

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        kept = (id_ for id_ in ids if id_ < BOS or not skip_special_tokens)
        return b"".join(map(self.token_bytes, kept)).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return SPECIAL.get(token_id) or bytes([token_id])

    def token_text(self, token_id: int) -> str:
        data = self.token_bytes(token_id)
        return data.decode() if data.isascii() else f"bytes:\\x{token_id:02x}"

    def is_special(self, token_id: int) -> bool:
        return token_id in SPECIAL

    def id_to_token(self, token_id: int) -> str | None:
        return SPECIAL[token_id].decode() if token_id in SPECIAL else chr(token_id)

    def token_to_id(self, token: str) -> int | None:
        return {name.decode(): id_ for id_, name in SPECIAL.items()}.get(token)


class FakeChatTemplate:
    """Renders `role:content;` for each message and remembers what it was given."""

    def __init__(self, source: str = "") -> None:
        self.source = source
        self.kwargs: dict[str, object] = {}

    shows_users = True
    shows_reasoning = False

    def mentions(self, name: str) -> bool:
        return name == "enable_thinking"

    def encode(
        self,
        tokenizer: FakeTokenizer,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: object = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: object,
    ) -> list[int]:
        self.kwargs = kwargs
        if messages[0]["content"] == "refuse":
            raise TemplateError("roles must alternate")
        text = "".join(f"{message['role']}:{message['content']};" for message in messages)
        text = text.removesuffix(";") if continue_final_message else text
        return tokenizer.encode(text + ("assistant:" if add_generation_prompt else ""))


class FakeEngine:
    """Answers with `reply(request)`, a byte per step, until a limit or a stop string."""

    def __init__(
        self,
        reply: str | Callable[[Request], str] = "Hello, world",
        *,
        chat_template: FakeChatTemplate | None = None,
        max_model_len: int = MAX_MODEL_LEN,
    ) -> None:
        self.reply = reply if callable(reply) else lambda _request: reply
        self.tokenizer = FakeTokenizer()
        self.chat_template: FakeChatTemplate | None = chat_template or FakeChatTemplate()
        self.grammars = GrammarCompiler(
            self.tokenizer, vocab_size=VOCAB_SIZE, eos_token_ids=frozenset({EOS})
        )
        self.info = EngineInfo(
            model_name="fake",
            root="/models/fake",
            architecture="llama",
            dtype="float32",
            device="cpu",
            num_parameters=1,
            vocab_size=VOCAB_SIZE,
            max_model_len=max_model_len,
            num_cache_tokens=4096,
            block_size=16,
            num_threads=1,
            num_layers=2,
            num_heads=2,
            cost=COST,
            eos_token_ids=frozenset({EOS}),
        )
        self.timeline = Timeline(max_events=1)
        self.status = EngineStatus.LOADING
        self.error: str | None = None
        self.step_seconds = 0.0
        self.first_step_seconds = 0.0
        self.fail_after: int | None = None
        self.requests: list[Request] = []
        self.open: set[str] = set()
        self.aborted: set[str] = set()
        self.stopped = False

    async def start(self) -> None:
        self.status = EngineStatus.READY

    @property
    def counts(self) -> EngineCounts:
        return EngineCounts(num_running=len(self.open))

    async def cache_snapshot(self) -> CacheSnapshot:
        """A cache that nobody uses."""
        return CacheSnapshot(
            time=0.0,
            version=0,
            block_size=self.info.block_size,
            num_blocks=256,
            num_free_blocks=256,
            reusable_block_ids=(),
            regions=(),
            num_waiting=0,
            num_preemptions=0,
            totals=self.timeline.totals,
        )

    async def stop(self, grace: float) -> None:
        self.status = EngineStatus.DRAINING
        while self.open and grace > 0:
            await asyncio.sleep(0.01)
            grace -= 0.01
        self.stopped = True

    async def attention_weights(
        self, token_ids: Sequence[int], *, layer: int | None, head: int | None
    ) -> list[list[float]]:
        count = len(token_ids)
        return [[1 / (i + 1)] * (i + 1) + [0.0] * (count - i - 1) for i in range(count)]

    async def generate(self, requests: Sequence[Request]) -> AsyncGenerator[RequestOutput, None]:
        self.requests += requests
        runs = {request.request_id: self._run(request) for request in requests}
        self.open |= runs.keys()
        try:
            await asyncio.sleep(self.first_step_seconds)
            while runs:
                for request_id, run in tuple(runs.items()):
                    output = next(run)
                    if output.finish_reason is not None:
                        del runs[request_id]
                    yield output
                await asyncio.sleep(self.step_seconds)
        finally:
            self.aborted |= runs.keys()
            self.open -= {request.request_id for request in requests}

    def _run(self, request: Request) -> FakeRun:
        return FakeRun(self, request)


class FakeRun:
    """One request's outputs, step by step."""

    def __init__(self, engine: FakeEngine, request: Request) -> None:
        self.request = request
        self.params = request.params
        self.tokens = [*engine.reply(request).encode(), EOS]
        self.engine = engine
        self.fail_after = engine.fail_after
        self.step = 0
        self.sent = ""

    def __next__(self) -> RequestOutput:
        params = self.params
        if self.engine.stopped:
            return self._output(finish_reason=FinishReason.ERROR, error="shutting down")
        if self.fail_after == self.step:
            return self._output(finish_reason=FinishReason.ERROR, error="injected failure")
        if params.max_tokens == 0:
            return self._output(
                finish_reason=FinishReason.LENGTH, prompt_logprobs=self._prompt_logprobs()
            )
        token = self.tokens[self.step]
        self.step += 1
        stop, text = self._visible()
        reason: FinishReason | None = None
        if stop is not None or token == EOS:
            reason = FinishReason.STOP
        elif self.step == params.max_tokens:
            reason = FinishReason.LENGTH
        if reason is None:
            text = self._held_back(text)
        increment, self.sent = text[len(self.sent) :], text
        return self._output(
            text=increment,
            token_ids=(token,),
            logprobs=() if params.logprobs is None else (self._logprob(token),),
            prompt_logprobs=self._prompt_logprobs() if self.step == 1 else None,
            finish_reason=reason,
            stop_reason=stop,
        )

    def _visible(self) -> tuple[str | None, str]:
        """The stop string that has completed, and the text so far up to it."""
        raw = bytes(token for token in self.tokens[: self.step] if token < BOS)
        text = raw.decode(errors="ignore")
        for stop in self.params.stop:
            if stop in text:
                return stop, text[: text.index(stop)]
        return None, text

    def _held_back(self, text: str) -> str:
        held = max(
            (
                size
                for stop in self.params.stop
                for size in range(len(stop))
                if text.endswith(stop[:size])
            ),
            default=0,
        )
        return text[: len(text) - held]

    def _logprob(self, token: int) -> Logprob:
        other = 65 if token != 65 else 66
        top = ((token, LOGPROB), (other, float("-inf")))[: self.params.logprobs or 0]
        return Logprob(token, LOGPROB, top)

    def _prompt_logprobs(self) -> tuple[Logprob | None, ...] | None:
        if self.params.prompt_logprobs is None:
            return None
        prompt = self.request.token_ids[: self.request.num_prompt_tokens]
        return (None, *(self._logprob(token) for token in prompt[1:]))

    def _output(self, **fields: object) -> RequestOutput:
        return RequestOutput(
            request_id=self.request.request_id,
            num_prompt_tokens=self.request.num_prompt_tokens,
            num_output_tokens=self.step,
            **fields,  # type: ignore[arg-type]  # a fake
        )
