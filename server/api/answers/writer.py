"""Writer: turns the engine's outputs into one call's answer, whole or as chunks.

What all forms of an answer share; how each is spelt is said by those who derive from it. Never
waits and never sends: `streaming` drives it.
"""

from __future__ import annotations

import abc
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar

from pydantic import BaseModel

from server.api.answers.choices import Choice, Piece, TokenNames
from server.api.answers.prompt_scores import prompt_scores
from server.api.generation_call import GenerationCall
from server.api.protocols import TokenizerLike
from server.api.schemas import wire_types
from server.api.transport.wire import DONE, KEEP_ALIVE, encode, event
from server.errors import ApiError
from server.request import RequestOutput

NOTHING: Mapping[str, Any] = MappingProxyType({})
_SOME_TEXT = "\0text\0"
"""Stands for a text, and is nothing else in an event."""
_quote = json.JSONEncoder().encode


class Writer(abc.ABC):
    """Turns the engine's outputs into one call's answer.

    Args:
        call: What was asked.
        tokenizer: Shows the tokens of log-probabilities.
    """

    def __init__(self, call: GenerationCall, tokenizer: TokenizerLike) -> None:
        self.call = call
        self._names = TokenNames(
            tokenizer,
            skip_special_tokens=call.options.skip_special_tokens,
            shown_token_ids=call.options.shown_token_ids,
        )
        self._choices = [
            Choice(self._names, call.prompts[index // call.n], call.options)
            for index in range(len(call.requests))
        ]
        self.num_open = len(call.requests)
        """Choices that have not ended."""
        self._index = {request.request_id: i for i, request in enumerate(call.requests)}
        self._around_text: dict[int, tuple[bytes, bytes]] = {}

    keep_alive: ClassVar[bytes] = KEEP_ALIVE
    """What is sent in a long silence."""

    def encode(self, answer: BaseModel) -> bytes:
        """A whole answer as JSON."""
        return encode(answer)

    def event(self, chunk: BaseModel) -> bytes:
        """One event of a stream."""
        return event(chunk)

    def ending(self) -> Iterator[bytes]:
        """What follows when every choice has ended."""
        if self.call.options.include_usage:
            yield self.event(self.usage_chunk())
        yield DONE

    def failure(self, error: ApiError) -> bytes:
        """What ends a stream that fails."""
        return event(error.body())

    def feed(self, output: RequestOutput) -> tuple[int, Piece]:
        """Take in an output; returns the index of its choice and what the choice gained.

        Raises:
            ApiError: The request failed.
        """
        index = self._index[output.request_id]
        piece = self._choices[index].advance(output)
        self.num_open -= piece.finish_reason is not None
        return index, piece

    def parts(self, output: RequestOutput) -> list[bytes]:
        """The events of an output as they are sent; the finish reason of a choice stands alone."""
        index = self._index[output.request_id]
        choice = self._choices[index]
        if self._is_plain and choice.has_begun and output.finish_reason is None:
            text = choice.extend(output)
            return [self._plain_event(index, text)] if text else []
        index, piece = self.feed(output)
        return [self.event(chunk) for chunk in self._all_chunks(index, piece)]

    def _all_chunks(self, index: int, piece: Piece) -> Iterator[BaseModel]:
        if piece.is_first:
            yield from self._opening(index)
        yield from self._chunks(index, piece)
        if piece.finish_reason is not None:
            yield self._closing(index, piece)

    def _plain_event(self, index: int, text: str) -> bytes:
        """The event of a piece that is only text: all around it is the same each time."""
        around = self._around_text.get(index)
        if around is None:
            (chunk,) = self._chunks(index, Piece(text=_SOME_TEXT))
            before, after = self.event(chunk).split(_quote(_SOME_TEXT).encode())
            around = self._around_text[index] = before, after
        return around[0] + _quote(text).encode() + around[1]

    @cached_property
    def _is_plain(self) -> bool:
        """Whether a piece in the middle of a choice brings text and nothing else."""
        return False

    def _says_something(self, piece: Piece) -> bool:
        """Whether a piece is worth an event."""
        shows_ids = self.call.options.return_token_ids and bool(piece.token_ids)
        return bool(piece.text or piece.scored) or shows_ids

    def usage(self) -> wire_types.Usage:
        """Token counts so far; each prompt counts once."""
        prompt = sum(len(prompt.token_ids) for prompt in self.call.prompts)
        completion = sum(choice.num_output_tokens for choice in self._choices)
        usage = wire_types.Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=wire_types.PromptTokensDetails(
                cached_tokens=sum(c.num_cached_tokens for c in self._choices[:: self.call.n])
            ),
        )
        if drafted := sum(choice.num_drafted_tokens for choice in self._choices):
            accepted = sum(choice.num_accepted_tokens for choice in self._choices)
            usage.completion_tokens_details = wire_types.CompletionTokensDetails(
                accepted_prediction_tokens=accepted, rejected_prediction_tokens=drafted - accepted
            )
        return usage

    def _common(self) -> dict[str, Any]:
        """What every chunk of a stream repeats."""
        call = self.call
        common = {
            "id": call.id, "created": call.created, "model": call.model, "seed": call.seed,
        }  # fmt: skip
        return common | ({"usage": self.usage()} if call.options.continuous_usage else {})

    def _ids(self, piece: Piece) -> dict[str, Any]:
        """The token ids of a piece, if they were asked for."""
        return {"token_ids": list(piece.token_ids)} if self.call.options.return_token_ids else {}

    def _prompt_ids(self, index: int) -> dict[str, Any]:
        """The token ids of a choice's prompt, if they were asked for."""
        ids = list(self.call.prompts[index // self.call.n].token_ids)
        return {"prompt_token_ids": ids} if self.call.options.return_token_ids else {}

    def _about_prompt(self, index: int) -> dict[str, Any]:
        """The token ids and the log-probabilities of a choice's prompt, as far as asked for."""
        wanted = self.call.options.prompt_logprobs
        if wanted is None:
            return self._prompt_ids(index)
        scores = prompt_scores(self._choices[index].prompt_logprobs, wanted, self._names)
        return {**self._prompt_ids(index), "prompt_logprobs": scores}

    @abc.abstractmethod
    def answer(self, pieces: Sequence[Piece]) -> BaseModel:
        """The whole answer, from one joined piece per choice."""

    @abc.abstractmethod
    def usage_chunk(self) -> BaseModel:
        """The last event of a stream that asked for usage."""

    @abc.abstractmethod
    def _opening(self, index: int) -> Iterator[BaseModel]:
        """Events before the first piece of a choice."""

    @abc.abstractmethod
    def _chunks(self, index: int, piece: Piece) -> Iterator[BaseModel]:
        """The events of a piece, if there is anything to say."""

    @abc.abstractmethod
    def _closing(self, index: int, piece: Piece) -> BaseModel:
        """The last event of a choice."""


def ending_of(piece: Piece) -> dict[str, Any]:
    """Why a choice ended; the stop string or token only if there was one."""
    assert piece.finish_reason is not None
    stop = {} if piece.stop_reason is None else {"stop_reason": piece.stop_reason}
    return {"finish_reason": piece.finish_reason.value, **stop}
