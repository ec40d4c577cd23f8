"""MessageWriter: writes the answers of /v1/messages, whole and as events in their order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pydantic_core

from server.api.answers.choices import Piece
from server.api.dialects.answer_blocks import Block, BlockKind, Change, Step
from server.api.dialects.block_writer import BlockWriter, named_event
from server.api.dialects.message_answers import (
    AnswerBlock,
    AnswerText,
    AnswerThinking,
    AnswerToolUse,
    BlockDelta,
    BlockStart,
    BlockStop,
    InputDelta,
    MessageChange,
    MessageDelta,
    MessageEnding,
    MessageObject,
    MessageStart,
    MessageStop,
    MessageUsage,
    Ping,
    StopReason,
    TextDelta,
    ThinkingDelta,
)
from server.api.dialects.message_errors import message_error
from server.errors import ApiError
from server.request import FinishReason


class MessageWriter(BlockWriter):
    """Writes one message."""

    keep_alive: ClassVar[bytes] = named_event(Ping())

    def ending(self) -> Iterator[bytes]:
        """The last event says only that it is the last."""
        yield named_event(MessageStop())

    def failure(self, error: ApiError) -> bytes:
        """What ends a stream that fails."""
        return named_event(message_error(error))

    def _whole(self, last: Piece) -> MessageObject:
        ending = self._ending(last)
        # A call that was cut off is none: whoever made it would use arguments that are not whole.
        blocks = [
            block
            for block in self._reader.blocks
            if block.is_complete or block.kind is not BlockKind.CALL
        ]
        content = [_block(block, is_open=False) for block in blocks]
        return self._message(content, ending)

    def _opening(self, _index: int) -> Iterator[MessageStart]:
        yield MessageStart(message=self._message([], None))

    def _closing(self, _index: int, piece: Piece) -> MessageDelta:
        return MessageDelta(delta=self._ending(piece), usage=self._message_usage())

    def _events(self, change: Change) -> Iterator[MessageChange]:
        block = change.block
        if change.step is Step.OPENS:
            yield BlockStart(index=block.index, content_block=_block(block, is_open=True))
        elif change.step is Step.GAINS:
            yield BlockDelta(index=block.index, delta=_delta(block, change.text))
        else:
            yield BlockStop(index=block.index)

    def _ending(self, last: Piece) -> MessageEnding:
        """Why the message ends; a stop string is named."""
        stop = last.stop_reason if isinstance(last.stop_reason, str) else None
        reason: StopReason = "end_turn"
        if last.finish_reason is FinishReason.LENGTH:
            reason = "max_tokens"
        elif stop is not None:
            reason = "stop_sequence"
        elif self._reader.num_calls:
            reason = "tool_use"
        return MessageEnding(stop_reason=reason, stop_sequence=stop)

    def _message(self, content: list[AnswerBlock], ending: MessageEnding | None) -> MessageObject:
        return MessageObject(
            id=f"msg_{self.call.id.partition('-')[2]}",
            model=self.call.model,
            content=content,
            stop_reason=None if ending is None else ending.stop_reason,
            stop_sequence=None if ending is None else ending.stop_sequence,
            usage=self._message_usage(),
        )

    def _message_usage(self) -> MessageUsage:
        usage = self.usage()
        cached = usage.prompt_tokens_details.cached_tokens
        return MessageUsage(
            input_tokens=usage.prompt_tokens - cached,
            cache_read_input_tokens=cached,
            output_tokens=usage.completion_tokens,
        )


def _block(block: Block, *, is_open: bool) -> AnswerBlock:
    """A block; one that has just begun is empty."""
    text = "" if is_open else block.text
    if block.kind is BlockKind.TEXT:
        return AnswerText(text=text)
    if block.kind is BlockKind.THOUGHTS:
        return AnswerThinking(thinking=text)
    return AnswerToolUse(id=block.call_id, name=block.name, input=_input(text))


def _input(arguments: str) -> dict[str, object]:
    """The object that a call's arguments spell; of arguments that were cut off what there is."""
    try:
        value = pydantic_core.from_json(arguments or "{}", allow_partial=True)
    except ValueError:
        value = {}
    return value if isinstance(value, dict) else {}


def _delta(block: Block, text: str) -> TextDelta | ThinkingDelta | InputDelta:
    if block.kind is BlockKind.TEXT:
        return TextDelta(text=text)
    if block.kind is BlockKind.THOUGHTS:
        return ThinkingDelta(thinking=text)
    return InputDelta(partial_json=text)
