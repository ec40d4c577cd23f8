"""Plain data that travels between the event loop and the engine thread.

The event loop builds a Request and hands it over once; from then on the engine thread owns it.
What comes back are frozen RequestOutputs, which anyone may keep.
No torch, no HTTP.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from cache.manager import Region

NO_BIAS: Mapping[int, float] = MappingProxyType({})
LARGEST_FLOAT32 = (2.0 - 2.0**-23) * 2.0**127


class RequestStatus(enum.Enum):
    """Where a request stands in the scheduler."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(enum.StrEnum):
    """Why a request ended, in the words of the OpenAI API; only the first two reach a client."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    REFUSED = "refused"
    """What the request asks for leaves nothing to say; seen only once it ran."""
    ERROR = "error"


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends; already checked.

    Neutral values ask for nothing: temperature 0 is greedy, top_k 0, top_p 1 and min_p 0 are off.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: NO_BIAS)
    allowed_token_ids: tuple[int, ...] = ()
    """The only tokens that may be chosen; all may if there is none."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens that must not be generated: their last is not chosen after the others."""
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    shown_token_ids: frozenset[int] = frozenset()
    """Control tokens that are part of the text even so: the marks of tool calls and reasoning."""
    logprobs: int | None = None
    """Alternatives reported beside each chosen token; 0 is the chosen one only, None is nothing."""
    prompt_logprobs: int | None = None
    """The same for each prompt token."""

    @property
    def is_greedy(self) -> bool:
        """Whether the temperature is 0, or so small that float32 cannot hold it or its inverse."""
        return self.temperature <= 1.0 / LARGEST_FLOAT32


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token's natural log-probability under the model, with the likeliest alternatives.

    The probabilities are those of the model itself, before temperature, penalties and biases.
    `top` holds (token id, log-probability) pairs, likeliest first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class TokenConstraint(Protocol):
    """What a constrained request may say next; it follows the generated tokens one by one."""

    @property
    def is_finished(self) -> bool:
        """Whether the text is complete and nothing can follow."""

    @property
    def is_broken(self) -> bool:
        """Whether the text cannot be continued."""

    def fill(self, words: NDArray[np.int32]) -> None:
        """Write which tokens may come next: bit i of word w stands for token 32 w + i."""

    def accept(self, token_id: int) -> None:
        """Follow one token."""


@dataclass(eq=False, kw_only=True, slots=True)
class Request:
    """One sequence to be continued: a prompt, its parameters, and what the engine did so far.

    A call with several prompts or choices becomes several requests.
    `token_ids` is the prompt followed by the generated tokens; the engine appends to it.
    Everything below `status` is the engine thread's.
    """

    request_id: str
    token_ids: list[int]
    params: SamplingParams
    choice: int = 0
    """Which of the n choices: with the seed it selects the stream of random numbers."""
    priority: int = 0
    """Lower runs first."""
    cache_salt: str = ""
    """Only requests with equal salts share cached prefixes."""
    prefix_cache: bool = True
    """Whether an earlier request's cached keys and values may be reused."""
    grammar: TokenConstraint | None = None
    """Grammar state that constrains the generated text; this request's own."""
    use_cache: bool = True
    """False computes the whole sequence anew for every token, and shares nothing with anyone."""
    arrival_time: float = field(default_factory=time.monotonic)
    earlier_token_ids: tuple[int, ...] = ()
    """Tokens of its answer that another engine chose and brought; this one goes on behind them."""

    num_prompt_tokens: int = field(init=False)
    status: RequestStatus = field(default=RequestStatus.WAITING, init=False)
    region: Region | None = field(default=None, init=False)
    num_computed_tokens: int = field(default=0, init=False)
    """Tokens whose keys and values are in the cache."""
    num_cached_tokens: int = field(default=0, init=False)
    """Prompt tokens that were found in the cache at first admission."""
    num_preemptions: int = field(default=0, init=False)
    num_drafted_tokens: int = field(default=0, init=False)
    """Tokens that were guessed ahead and checked."""
    num_accepted_tokens: int = field(default=0, init=False)
    """Those of them that it then said."""
    prompt_logprobs: list[Logprob | None] = field(default_factory=list, init=False)
    """Filled in order of position; the first token has none."""

    def __post_init__(self) -> None:
        """Remember where the prompt ends."""
        self.num_prompt_tokens = len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens the scheduler still has to catch up on before the next one can be chosen."""
        return len(self.token_ids) - self.num_computed_tokens


class RequestOutput(NamedTuple):
    """Output of one engine step for one request; text and tokens are increments.

    A tuple, as the step makes one for each request, and a frozen dataclass takes three times as
    long. Give its fields by name, but where the step makes it: there the first seven go by place.

    `text` may lag behind `token_ids`: half characters and possible stop strings are held back.
    The output with a `finish_reason` is the last one and releases all that was held.
    """

    request_id: str
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[Logprob, ...] = ()
    """One for each of `token_ids` if they were asked for, else empty."""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended the request; None for an end-of-text token."""
    error: str | None = None
    """A sentence for the client when finish_reason is REFUSED or ERROR."""
    prompt_logprobs: tuple[Logprob | None, ...] | None = None
    """Complete, once, in the output that brings the first token (or ends a scoring request)."""
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    """Of the drafted ones, complete in the last output."""
