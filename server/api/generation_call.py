"""GenerationCall: one checked HTTP request on its way to engine requests, and then to an answer.

Plain data, frozen. The engine requests in it are handed over once; the rest stays with the
event loop and says how the answer is written.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.api.structured_output.answer_parser import PLAIN_TEXT, AnswerFormat
from server.api.structured_output.constraint import Constraint
from server.request import Request


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedPrompt:
    """Token ids of a prompt, which n choices continue."""

    token_ids: tuple[int, ...]
    text: str = ""
    """The prompt's text, where the answer begins with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerOptions:
    """How the answer is shown: streamed or whole, with usage, log-probabilities, echo."""

    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    echo: bool = False
    logprobs: int | None = None
    """Alternatives beside each token; None is no log-probabilities at all."""
    prompt_logprobs: int | None = None
    """The same beside each token of the prompt."""
    return_token_ids: bool = False
    skip_special_tokens: bool = True
    include_stop: bool = False
    shown_token_ids: frozenset[int] = frozenset()
    """Control tokens that are part of the text even if others are skipped."""

    @property
    def is_text_only(self) -> bool:
        """Whether nothing but text is shown while a choice grows."""
        return not (self.continuous_usage or self.return_token_ids) and self.logprobs is None


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationCall:
    """One HTTP request, ready to run.

    Choice i of the answer is `requests[i]` and continues `prompts[i // n]`.
    """

    id: str
    created: int
    model: str
    seed: int
    n: int
    prompts: tuple[EncodedPrompt, ...]
    requests: tuple[Request, ...]
    options: AnswerOptions
    answer_format: AnswerFormat = PLAIN_TEXT
    """What the text of a choice may hold beside text."""
    constraint: Constraint | None = None
    """What must be compiled before the requests may run."""
