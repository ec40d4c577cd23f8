"""BlockWriter: writes answers that are a row of blocks, for the forms that are not a chat's.

What these forms share: one choice, taken apart as it comes, events with a name, whole objects with
all their fields. What the events are is said by those who derive from it.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from server.api.answers.choices import Piece
from server.api.answers.writer import Writer
from server.api.dialects.answer_blocks import BlockReader, Change
from server.api.generation_call import GenerationCall
from server.api.protocols import TokenizerLike
from server.api.transport.wire import encode
from server.request import FinishReason, RequestOutput


def named_event(body: BaseModel) -> bytes:
    """One server-sent event, named after its type."""
    plain = body.model_dump(by_alias=True)
    return f"event: {plain['type']}\ndata: ".encode() + encode(plain) + b"\n\n"


class BlockWriter(Writer):
    """Writes an answer block by block.

    Args:
        call: What was asked, as a chat; of one choice.
        tokenizer: See Writer.
    """

    def __init__(self, call: GenerationCall, tokenizer: TokenizerLike) -> None:
        super().__init__(call, tokenizer)
        assert len(call.requests) == 1, "these forms know no choices"
        self._reader = BlockReader(call.answer_format)
        self._changes: list[Change] = []

    def encode(self, answer: BaseModel) -> bytes:
        """A whole answer as JSON."""
        return encode(answer.model_dump(by_alias=True))

    def event(self, chunk: BaseModel) -> bytes:
        """One event of a stream."""
        return named_event(chunk)

    def ending(self) -> Iterator[bytes]:
        """Nothing: the last event says that it is the last."""
        yield from ()

    def feed(self, output: RequestOutput) -> tuple[int, Piece]:
        """Take in an output and remember what it changes.

        Raises:
            ApiError: The request failed.
        """
        index, piece = super().feed(output)
        is_cut = piece.finish_reason is FinishReason.LENGTH
        self._changes = self._reader.read(piece, is_cut=is_cut)
        return index, piece

    def answer(self, pieces: Sequence[Piece]) -> BaseModel:
        """The whole answer."""
        return self._whole(pieces[0])

    def usage_chunk(self) -> BaseModel:
        """Usage stands in the last event of every stream."""
        raise NotImplementedError

    def _chunks(self, _index: int, _piece: Piece) -> Iterator[BaseModel]:
        for change in self._changes:
            yield from self._events(change)

    @abc.abstractmethod
    def _whole(self, last: Piece) -> BaseModel:
        """The whole answer, given how it ended."""

    @abc.abstractmethod
    def _events(self, change: Change) -> Iterator[BaseModel]:
        """The events of a change."""
