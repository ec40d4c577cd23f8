"""Choice: what one choice of an answer has received, cut into pieces that may be shown.

Text arrives from the engine already cut at stop strings; here log-probabilities are lined up with
it, so that a token whose text is still held back, or was cut away, is not shown either. Knows no
wire format: that is streaming's.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from server.api.generation_call import AnswerOptions, EncodedPrompt
from server.api.protocols import TokenizerLike
from server.errors import EngineUnavailableError, InternalError, InvalidRequestError
from server.request import FinishReason, Logprob, RequestOutput

LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token as it is shown: a readable name and the bytes it adds to the text."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token with its log-probability, or None for the very first of a prompt."""

    token: TokenText
    logprob: float | None
    top: tuple[tuple[TokenText, float], ...]
    offset: int
    """Where its text begins, in characters of the choice's text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """One increment of a choice: text, tokens and their log-probabilities."""

    is_first: bool = False
    text: str = ""
    token_ids: tuple[int, ...] = ()
    scored: tuple[ScoredToken, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


def join(pieces: Sequence[Piece]) -> Piece:
    """All pieces of a choice as one."""
    return Piece(
        text="".join(piece.text for piece in pieces),
        token_ids=tuple(id_ for piece in pieces for id_ in piece.token_ids),
        scored=tuple(token for piece in pieces for token in piece.scored),
        finish_reason=pieces[-1].finish_reason,
        stop_reason=pieces[-1].stop_reason,
    )


class TokenNames:
    """Names and bytes of tokens, as the answer shows them."""

    def __init__(
        self,
        tokenizer: TokenizerLike,
        *,
        skip_special_tokens: bool,
        shown_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._shown_token_ids = shown_token_ids

    def show(self, token_id: int) -> TokenText:
        """A token as it is shown; a control token adds nothing to a text that skips them."""
        skipped = self._skip_special_tokens and token_id not in self._shown_token_ids
        hidden = skipped and self._tokenizer.is_special(token_id)
        data = b"" if hidden else self._tokenizer.token_bytes(token_id)
        return TokenText(self._tokenizer.token_text(token_id), data)


class Choice:
    """One choice while its tokens arrive.

    Args:
        names: How tokens are shown.
        prompt: What it continues.
        options: What the client wants to see.
    """

    def __init__(self, names: TokenNames, prompt: EncodedPrompt, options: AnswerOptions) -> None:
        self._names = names
        self._prompt = prompt
        self._options = options
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._decoded = 0
        self._shown = 0
        self._pending: deque[ScoredToken] = deque()
        self.has_begun = False
        """Whether anything has been shown of it."""
        self.num_output_tokens = 0
        self.num_cached_tokens = 0
        self.num_drafted_tokens = 0
        self.num_accepted_tokens = 0
        self.prompt_logprobs: tuple[Logprob | None, ...] = ()
        """Complete with the first output, if they were computed."""

    def advance(self, output: RequestOutput) -> Piece:
        """Take in what a step brought and return what of it may be shown.

        Raises:
            ApiError: The request failed.
        """
        _check(output)
        self.num_output_tokens = output.num_output_tokens
        self.num_cached_tokens = output.num_cached_tokens
        self.num_drafted_tokens = output.num_drafted_tokens
        self.num_accepted_tokens = output.num_accepted_tokens
        self.prompt_logprobs = output.prompt_logprobs or self.prompt_logprobs
        is_first, self.has_begun = not self.has_begun, True
        text = self._echo(output) + output.text if is_first else output.text
        self._shown += len(text)
        self._score(output.token_ids, output.logprobs)
        return Piece(
            is_first=is_first,
            text=text,
            token_ids=output.token_ids,
            scored=tuple(self._release(output)),
            finish_reason=output.finish_reason,
            stop_reason=output.stop_reason,
        )

    def extend(self, output: RequestOutput) -> str:
        """The text of an output in the middle, for an answer that shows nothing else."""
        self.num_output_tokens = output.num_output_tokens
        return output.text

    def _echo(self, output: RequestOutput) -> str:
        """The prompt's text, if the answer begins with it; its tokens are lined up."""
        if not self._options.echo:
            return ""
        self._score(self._prompt.token_ids, output.prompt_logprobs or ())
        self._decoder.reset()
        self._decoded = len(self._prompt.text)
        return self._prompt.text

    def _score(self, token_ids: Sequence[int], logprobs: Sequence[Logprob | None]) -> None:
        """Line tokens up with the text; only the first of a prompt has no log-probability."""
        if self._options.logprobs is None:
            return
        for token_id, logprob in zip(token_ids, logprobs, strict=True):
            shown = self._names.show(token_id)
            top = tuple(
                (self._names.show(id_), finite(value))
                for id_, value in (logprob.top[: self._options.logprobs] if logprob else ())
            )
            value = finite(logprob.logprob) if logprob else None
            self._pending.append(ScoredToken(shown, value, top, self._decoded))
            self._decoded += len(self._decoder.decode(shown.data))

    def _release(self, output: RequestOutput) -> Iterable[ScoredToken]:
        """The tokens whose text has begun to show; in the end all but those behind a stop."""
        cut = isinstance(output.stop_reason, str) and not self._options.include_stop
        ended = output.finish_reason is not None and not cut
        while self._pending and (ended or self._pending[0].offset < self._shown):
            yield self._pending.popleft()


def finite(logprob: float) -> float:
    """A log-probability that JSON can carry; NaN counts as the lowest."""
    return min(0.0, logprob) if logprob > LOWEST_LOGPROB else LOWEST_LOGPROB


def _check(output: RequestOutput) -> None:
    if output.finish_reason is FinishReason.REFUSED:
        message = output.error or "The request contradicts itself."
        raise InvalidRequestError(message, code="unsatisfiable_request")
    if output.finish_reason is FinishReason.ERROR:
        raise InternalError(output.error or "The server failed to finish this request.")
    if output.finish_reason is FinishReason.ABORT:
        raise EngineUnavailableError(
            output.error or "The request was ended before it was finished."
        )
