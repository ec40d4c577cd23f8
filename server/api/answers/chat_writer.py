"""ChatWriter: writes the answers of /v1/chat/completions, whole and as chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from pydantic import BaseModel

from server.api.answers.chat_parts import to_deltas, to_message
from server.api.answers.choices import Piece, ScoredToken
from server.api.answers.writer import NOTHING, Writer, ending_of
from server.api.generation_call import GenerationCall
from server.api.protocols import TokenizerLike
from server.api.schemas import wire_types
from server.api.structured_output.answer_parser import AnswerParser, Part
from server.request import FinishReason


class ChatWriter(Writer):
    """Writes the answers of /v1/chat/completions."""

    def __init__(self, call: GenerationCall, tokenizer: TokenizerLike) -> None:
        super().__init__(call, tokenizer)
        self._parsers = [AnswerParser(call.answer_format) for _ in call.requests]

    def answer(self, pieces: Sequence[Piece]) -> wire_types.ChatCompletion:
        """The whole answer."""
        choices = [
            wire_types.ChatChoice(
                index=index,
                message=to_message(self._parts(index, piece)),
                logprobs=self._logprobs(piece),
                **self._chat_ending(index, piece),
                **self._ids(piece),
            )
            for index, piece in enumerate(pieces)
        ]
        more = {**self._common(), **self._about_prompt(0), "usage": self.usage()}
        return wire_types.ChatCompletion(object="chat.completion", choices=choices, **more)

    def usage_chunk(self) -> wire_types.ChatCompletionChunk:
        """The last event of a stream that asked for usage."""
        more = {**self._common(), "usage": self.usage()}
        return wire_types.ChatCompletionChunk(object="chat.completion.chunk", choices=[], **more)

    @cached_property
    def _is_plain(self) -> bool:
        return self.call.options.is_text_only and self.call.answer_format.is_text

    def _opening(self, index: int) -> Iterator[BaseModel]:
        content = None if self.call.answer_format.is_call else ""
        delta = wire_types.Delta(role="assistant", content=content)
        yield self._event(index, delta, Piece()).model_copy(update=self._prompt_ids(index))

    def _chunks(self, index: int, piece: Piece) -> Iterator[BaseModel]:
        deltas = list(to_deltas(self._parts(index, piece)))
        if not deltas and self._says_something(replace(piece, text="")):
            deltas = [wire_types.Delta(content="")]
        for delta in deltas:
            yield self._event(index, delta, piece)
            piece = Piece()  # ids and log-probabilities stand in the first

    def _closing(self, index: int, piece: Piece) -> wire_types.ChatCompletionChunk:
        return self._event(index, wire_types.Delta(), Piece(), more=self._chat_ending(index, piece))

    def _parts(self, index: int, piece: Piece) -> list[Part]:
        """What a piece adds to a choice's answer, taken apart."""
        parser = self._parsers[index]
        parts = parser.feed(piece.text)
        return parts if piece.finish_reason is None else parts + parser.finish()

    def _chat_ending(self, index: int, piece: Piece) -> dict[str, Any]:
        """Why a choice ended: for its tool calls, if it made any and was not cut off."""
        ending = ending_of(piece)
        called = piece.finish_reason is FinishReason.STOP and self._parsers[index].num_calls
        return {**ending, "finish_reason": "tool_calls"} if called else ending

    def _event(
        self,
        index: int,
        delta: wire_types.Delta,
        piece: Piece,
        *,
        more: Mapping[str, Any] = NOTHING,
    ) -> wire_types.ChatCompletionChunk:
        fields: dict[str, Any] = {"finish_reason": None, **self._ids(piece), **more}
        logprobs = self._logprobs(piece) if piece.scored else None
        choice = wire_types.ChunkChoice(index=index, delta=delta, logprobs=logprobs, **fields)
        return wire_types.ChatCompletionChunk(
            object="chat.completion.chunk", choices=[choice], **self._common()
        )

    def _logprobs(self, piece: Piece) -> wire_types.ChatLogprobs | None:
        if self.call.options.logprobs is None:
            return None
        content = [_chat_logprob(token) for token in piece.scored]
        return wire_types.ChatLogprobs(content=content, refusal=None)


def _chat_logprob(token: ScoredToken) -> wire_types.TokenLogprob:
    assert token.logprob is not None, "only the first token of a prompt has no log-probability"
    return wire_types.TokenLogprob(
        token=token.token.name,
        bytes=list(token.token.data),
        logprob=token.logprob,
        top_logprobs=[
            wire_types.TopLogprob(token=shown.name, bytes=list(shown.data), logprob=logprob)
            for shown, logprob in token.top
        ],
    )
