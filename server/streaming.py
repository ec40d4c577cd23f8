"""The wire format of answers: whole ones and server-sent events, from the same pieces.

A writer turns the engine's outputs into chunks or one answer; `events` and `collect` drive it.
The only writer of the wire format: whatever a client reads that is not an error was made here.
Never waits for anything but the engine's outputs.
"""

from __future__ import annotations

import abc
import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel

from server import answers
from server.answer_parser import AnswerParser, Part
from server.call import Call
from server.chat_parts import to_deltas, to_message
from server.choices import Choice, Piece, ScoredToken, TokenNames, join
from server.errors import ApiError
from server.prompt_scores import prompt_scores
from server.protocols import Tokenizer
from server.request import FinishReason, RequestOutput

Result = TypeVar("Result")
KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
NOTHING: Mapping[str, Any] = MappingProxyType({})


def event(body: BaseModel | Mapping[str, object]) -> bytes:
    """One server-sent event; ASCII, as some clients split lines at every Unicode line end."""
    return b"data: " + encode(body) + b"\n\n"


def encode(body: BaseModel | Mapping[str, object]) -> bytes:
    """Strict JSON without the fields that were not set."""
    plain = body.model_dump(exclude_unset=True) if isinstance(body, BaseModel) else body
    return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode()


def encode_patiently(body: BaseModel) -> bytes:
    """The same piece by piece: slower, but other threads run meanwhile; for megabytes."""
    encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
    text = bytearray()
    for piece in encoder.iterencode(body.model_dump(exclude_unset=True)):
        text += piece.encode()
    return bytes(text)


class Writer(abc.ABC):
    """Turns the engine's outputs into one call's answer.

    Args:
        call: What was asked.
        tokenizer: Shows the tokens of log-probabilities.
    """

    def __init__(self, call: Call, tokenizer: Tokenizer) -> None:
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
        self._num_open = len(call.requests)
        self._index = {request.request_id: i for i, request in enumerate(call.requests)}

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

    @property
    def finished(self) -> bool:
        """Whether every choice has ended."""
        return self._num_open == 0

    def feed(self, output: RequestOutput) -> tuple[int, Piece]:
        """Take in an output; returns the index of its choice and what the choice gained.

        Raises:
            ApiError: The request failed.
        """
        index = self._index[output.request_id]
        piece = self._choices[index].advance(output)
        self._num_open -= piece.finish_reason is not None
        return index, piece

    def chunks(self, output: RequestOutput) -> Iterator[BaseModel]:
        """The events of an output; a finish reason stands alone in the last of its choice."""
        index, piece = self.feed(output)
        if piece.is_first:
            yield from self._opening(index)
        yield from self._chunks(index, piece)
        if piece.finish_reason is not None:
            yield self._closing(index, piece)

    def parts(self, output: RequestOutput) -> list[bytes]:
        """The events of an output as they are sent."""
        return [self.event(chunk) for chunk in self.chunks(output)]

    def _says_something(self, piece: Piece) -> bool:
        """Whether a piece is worth an event."""
        shows_ids = self.call.options.return_token_ids and bool(piece.token_ids)
        return bool(piece.text or piece.scored) or shows_ids

    def usage(self) -> answers.Usage:
        """Token counts so far; each prompt counts once."""
        prompt = sum(len(prompt.token_ids) for prompt in self.call.prompts)
        completion = sum(choice.num_output_tokens for choice in self._choices)
        return answers.Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=answers.PromptTokensDetails(
                cached_tokens=sum(c.num_cached_tokens for c in self._choices[:: self.call.n])
            ),
        )

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


class CompletionWriter(Writer):
    """Writes the answers of /v1/completions."""

    def answer(self, pieces: Sequence[Piece]) -> answers.Completion:
        """The whole answer."""
        choices = [
            self._choice(index, piece, _ending(piece) | self._about_prompt(index))
            for index, piece in enumerate(pieces)
        ]
        return self._completion(choices, {"usage": self.usage()})

    def usage_chunk(self) -> answers.Completion:
        """The last event of a stream that asked for usage."""
        return self._completion([], {"usage": self.usage()})

    def _opening(self, index: int) -> Iterator[BaseModel]:
        if self.call.options.return_token_ids:
            yield self._completion([self._choice(index, Piece(), self._prompt_ids(index))])

    def _chunks(self, index: int, piece: Piece) -> Iterator[BaseModel]:
        if self._says_something(piece):
            yield self._completion([self._choice(index, piece)])

    def _closing(self, index: int, piece: Piece) -> answers.Completion:
        return self._completion([self._choice(index, Piece(), _ending(piece))])

    def _completion(
        self, choices: list[answers.CompletionChoice], more: Mapping[str, Any] = NOTHING
    ) -> answers.Completion:
        return answers.Completion(
            object="text_completion", choices=choices, **{**self._common(), **more}
        )

    def _choice(
        self, index: int, piece: Piece, more: Mapping[str, Any] = NOTHING
    ) -> answers.CompletionChoice:
        wanted = self.call.options.logprobs is not None
        logprobs = _completion_logprobs(piece.scored) if wanted else None
        fields: dict[str, Any] = {"finish_reason": None, **self._ids(piece), **more}
        return answers.CompletionChoice(index=index, text=piece.text, logprobs=logprobs, **fields)


class ChatWriter(Writer):
    """Writes the answers of /v1/chat/completions."""

    def __init__(self, call: Call, tokenizer: Tokenizer) -> None:
        super().__init__(call, tokenizer)
        self._parsers = [AnswerParser(call.answer_format) for _ in call.requests]

    def answer(self, pieces: Sequence[Piece]) -> answers.ChatCompletion:
        """The whole answer."""
        choices = [
            answers.ChatChoice(
                index=index,
                message=to_message(self._parts(index, piece)),
                logprobs=self._logprobs(piece),
                **self._chat_ending(index, piece),
                **self._ids(piece),
            )
            for index, piece in enumerate(pieces)
        ]
        more = {**self._common(), **self._about_prompt(0), "usage": self.usage()}
        return answers.ChatCompletion(object="chat.completion", choices=choices, **more)

    def usage_chunk(self) -> answers.ChatCompletionChunk:
        """The last event of a stream that asked for usage."""
        more = {**self._common(), "usage": self.usage()}
        return answers.ChatCompletionChunk(object="chat.completion.chunk", choices=[], **more)

    def _opening(self, index: int) -> Iterator[BaseModel]:
        content = None if self.call.answer_format.is_call else ""
        delta = answers.Delta(role="assistant", content=content)
        yield self._event(index, delta, Piece()).model_copy(update=self._prompt_ids(index))

    def _chunks(self, index: int, piece: Piece) -> Iterator[BaseModel]:
        deltas = list(to_deltas(self._parts(index, piece)))
        if not deltas and self._says_something(replace(piece, text="")):
            deltas = [answers.Delta(content="")]
        for delta in deltas:
            yield self._event(index, delta, piece)
            piece = Piece()  # ids and log-probabilities stand in the first

    def _closing(self, index: int, piece: Piece) -> answers.ChatCompletionChunk:
        return self._event(index, answers.Delta(), Piece(), more=self._chat_ending(index, piece))

    def _parts(self, index: int, piece: Piece) -> list[Part]:
        """What a piece adds to a choice's answer, taken apart."""
        parser = self._parsers[index]
        parts = parser.feed(piece.text)
        return parts if piece.finish_reason is None else parts + parser.finish()

    def _chat_ending(self, index: int, piece: Piece) -> dict[str, Any]:
        """Why a choice ended: for its tool calls, if it made any and was not cut off."""
        ending = _ending(piece)
        called = piece.finish_reason is FinishReason.STOP and self._parsers[index].num_calls
        return {**ending, "finish_reason": "tool_calls"} if called else ending

    def _event(
        self,
        index: int,
        delta: answers.Delta,
        piece: Piece,
        *,
        more: Mapping[str, Any] = NOTHING,
    ) -> answers.ChatCompletionChunk:
        fields: dict[str, Any] = {"finish_reason": None, **self._ids(piece), **more}
        logprobs = self._logprobs(piece) if piece.scored else None
        choice = answers.ChunkChoice(index=index, delta=delta, logprobs=logprobs, **fields)
        return answers.ChatCompletionChunk(
            object="chat.completion.chunk", choices=[choice], **self._common()
        )

    def _logprobs(self, piece: Piece) -> answers.ChatLogprobs | None:
        if self.call.options.logprobs is None:
            return None
        content = [_chat_logprob(token) for token in piece.scored]
        return answers.ChatLogprobs(content=content, refusal=None)


async def collect(writer: Writer, outputs: AsyncGenerator[RequestOutput, None]) -> bytes:
    """The whole answer as JSON.

    Raises:
        ApiError: A request failed; the others are aborted.
    """
    pieces: list[list[Piece]] = [[] for _ in writer.call.requests]
    is_long = False
    async with aclosing(outputs):
        async for output in outputs:
            index, piece = await _aside(output, writer.feed)
            pieces[index].append(piece)
            is_long = is_long or output.prompt_logprobs is not None
    joined = [join(gained) for gained in pieces]
    if is_long:
        return await asyncio.to_thread(lambda: encode_patiently(writer.answer(joined)))
    return writer.encode(writer.answer(joined))


async def _aside(output: RequestOutput, work: Callable[[RequestOutput], Result]) -> Result:
    """What comes of an output; in a thread if the scores of a prompt make that long."""
    if output.prompt_logprobs is None:
        return work(output)
    return await asyncio.to_thread(work, output)


async def events(
    writer: Writer, outputs: AsyncGenerator[RequestOutput, None], *, keep_alive: float
) -> AsyncGenerator[bytes, None]:
    """The answer as server-sent events; closing this iterator aborts what still runs.

    Args:
        writer: Makes the chunks.
        outputs: The engine's; closed in the end.
        keep_alive: Seconds of silence after which a comment is sent.

    Raises:
        ApiError: A request failed; the others are aborted.
    """
    async with aclosing(outputs):
        async for output in _punctual(outputs, keep_alive):
            if output is None:
                yield writer.keep_alive
                continue
            parts = await _aside(output, writer.parts)
            for part in parts:
                yield part
            if writer.finished:
                break  # nothing may come between the last token and the usage
    for part in writer.ending():
        yield part


async def _punctual(
    outputs: AsyncIterator[RequestOutput], interval: float
) -> AsyncIterator[RequestOutput | None]:
    """The outputs, and None whenever there was none for `interval` seconds."""
    while True:
        step = asyncio.ensure_future(anext(outputs, None))
        try:
            while not (await asyncio.wait({step}, timeout=interval))[0]:
                yield None
        finally:
            step.cancel()
            await asyncio.wait({step})
        output = step.result()
        if output is None:
            return
        yield output


def _ending(piece: Piece) -> dict[str, Any]:
    """Why a choice ended; the stop string or token only if there was one."""
    assert piece.finish_reason is not None
    stop = {} if piece.stop_reason is None else {"stop_reason": piece.stop_reason}
    return {"finish_reason": piece.finish_reason.value, **stop}


def _completion_logprobs(scored: Sequence[ScoredToken]) -> answers.CompletionLogprobs:
    return answers.CompletionLogprobs(
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


def _chat_logprob(token: ScoredToken) -> answers.TokenLogprob:
    assert token.logprob is not None, "only the first token of a prompt has no log-probability"
    return answers.TokenLogprob(
        token=token.token.name,
        bytes=list(token.token.data),
        logprob=token.logprob,
        top_logprobs=[
            answers.TopLogprob(token=shown.name, bytes=list(shown.data), logprob=logprob)
            for shown, logprob in token.top
        ],
    )
