"""What the HTTP side needs of the engine, the tokenizer and the template, and nothing more.

The real ones are server.engine.async_engine.AsyncEngine, model.tokenizer.Tokenizer and
model.chat_template.ChatTemplate; tests bring small ones of their own. Keeps torch out of the
modules that speak HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from server.engine.cache_snapshot import CacheSnapshot
from server.engine.engine_info import EngineCounts, EngineInfo
from server.engine.timeline import Timeline
from server.engine_status import EngineStatus
from server.request import Request, RequestOutput

if TYPE_CHECKING:
    from server.engine.grammars.grammar import GrammarCompiler


class TokenizerLike(Protocol):
    """Text to token ids and back."""

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text, if the model has one."""

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text, if the model has one."""

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text; control tokens spelled out in it stay text."""

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ids."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes an id adds to the text."""

    def token_text(self, token_id: int) -> str:
        r"""A token as people read it: its text, or "bytes:\xf0\x9f" for part of a character."""

    def is_special(self, token_id: int) -> bool:
        """Whether an id is a control token."""

    def id_to_token(self, token_id: int) -> str | None:
        """The name of an id in the vocabulary."""

    def token_to_id(self, token: str) -> int | None:
        """The id of a name in the vocabulary."""


class ChatTemplateLike(Protocol):
    """Messages to token ids."""

    @property
    def source(self) -> str:
        """All that the template says."""

    @property
    def shows_users(self) -> bool:
        """Whether it writes what users say."""

    @property
    def shows_reasoning(self) -> bool:
        """Whether it writes the thoughts of earlier turns."""

    def mentions(self, name: str) -> bool:
        """Whether the template reads a variable of this name."""

    def encode(
        self,
        tokenizer: Any,  # noqa: ANN401 - the real one wants the real one, tests bring their own
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: object,
    ) -> list[int]:
        """Render the messages and tokenise them; text of messages never becomes control tokens."""


class Service(Protocol):
    """What is brought up with a server and taken down with it."""

    async def start(self) -> None:
        """Get ready; requests are answered meanwhile, with 503."""

    async def stop(self, grace: float) -> None:
        """Let running requests finish for `grace` seconds, fail the rest, and end."""


class EngineClient(Protocol):
    """Continues requests; every method belongs to the event loop."""

    error: str | None

    @property
    def status(self) -> EngineStatus:
        """Its status in the life cycle: loading, ready, draining or dead."""

    @property
    def info(self) -> EngineInfo:
        """Facts about the model."""

    @property
    def tokenizer(self) -> TokenizerLike:
        """The model's tokenizer."""

    @property
    def chat_template(self) -> ChatTemplateLike | None:
        """The model's chat template, if it has one."""

    @property
    def grammars(self) -> GrammarCompiler:
        """Compiles grammars for the model's vocabulary."""

    @property
    def timeline(self) -> Timeline:
        """Timeline of requests: what they waited for and did."""

    @property
    def counts(self) -> EngineCounts:
        """How busy the engine is."""

    async def cache_snapshot(self) -> CacheSnapshot:
        """How the cache is divided at this moment."""

    async def start(self) -> None:
        """Load the model and begin to serve."""

    def generate(self, requests: Sequence[Request]) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of all requests as they come; closing the iterator aborts what still runs."""

    async def attention_weights(
        self, token_ids: Sequence[int], *, layer: int | None, head: int | None
    ) -> list[list[float]]:
        """Attention weights of a short text: a square of rows that sum to 1."""

    async def stop(self, grace: float) -> None:
        """Let running requests finish for `grace` seconds, fail the rest, and end."""
