"""CompletionWriter: writes the answers of /v1/completions, whole and as chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from pydantic import BaseModel

from server.api.answers.choices import Piece, ScoredToken
from server.api.answers.writer import NOTHING, Writer, ending_of
from server.api.schemas import wire_types


class CompletionWriter(Writer):
    """Writes the answers of /v1/completions."""

    def answer(self, pieces: Sequence[Piece]) -> wire_types.Completion:
        """The whole answer."""
        choices = [
            self._choice(index, piece, ending_of(piece) | self._about_prompt(index))
            for index, piece in enumerate(pieces)
        ]
        return self._completion(choices, {"usage": self.usage()})

    def usage_chunk(self) -> wire_types.Completion:
        """The last event of a stream that asked for usage."""
        return self._completion([], {"usage": self.usage()})

    @cached_property
    def _is_plain(self) -> bool:
        return self.call.options.is_text_only

    def _opening(self, index: int) -> Iterator[BaseModel]:
        if self.call.options.return_token_ids:
            yield self._completion([self._choice(index, Piece(), self._prompt_ids(index))])

    def _chunks(self, index: int, piece: Piece) -> Iterator[BaseModel]:
        if self._says_something(piece):
            yield self._completion([self._choice(index, piece)])

    def _closing(self, index: int, piece: Piece) -> wire_types.Completion:
        return self._completion([self._choice(index, Piece(), ending_of(piece))])

    def _completion(
        self, choices: list[wire_types.CompletionChoice], more: Mapping[str, Any] = NOTHING
    ) -> wire_types.Completion:
        return wire_types.Completion(
            object="text_completion", choices=choices, **{**self._common(), **more}
        )

    def _choice(
        self, index: int, piece: Piece, more: Mapping[str, Any] = NOTHING
    ) -> wire_types.CompletionChoice:
        wanted = self.call.options.logprobs is not None
        logprobs = _completion_logprobs(piece.scored) if wanted else None
        fields: dict[str, Any] = {"finish_reason": None, **self._ids(piece), **more}
        return wire_types.CompletionChoice(
            index=index, text=piece.text, logprobs=logprobs, **fields
        )


def _completion_logprobs(scored: Sequence[ScoredToken]) -> wire_types.CompletionLogprobs:
    return wire_types.CompletionLogprobs(
        tokens=[token.token.name for token in scored],
        token_logprobs=[token.logprob for token in scored],
        top_logprobs=[_alternatives(token) for token in scored],
        text_offset=[token.offset for token in scored],
    )


def _alternatives(token: ScoredToken) -> dict[str, float] | None:
    """The likeliest tokens and the chosen one by name; of equal names the likelier counts."""
    if token.logprob is None:
        return None
    named: dict[str, float] = {}
    for shown, logprob in (*token.top, (token.token, token.logprob)):
        named.setdefault(shown.name, logprob)
    return named
