"""BlockReader: one answer as a row of blocks, each text, thoughts or one tool call.

The chat form keeps text, thoughts and calls apart; the newer forms want them in the order in which
the model wrote them, opened and closed one after the other. Knows no wire format.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from dataclasses import dataclass

from server.api.answers.choices import Piece
from server.api.structured_output.answer_parser import AnswerFormat, AnswerParser, Part
from server.api.structured_output.reasoning import Reasoning
from server.api.structured_output.tool_calls import CallPiece


class BlockKind(enum.Enum):
    """Kind of a content block."""

    TEXT = "text"
    THOUGHTS = "thoughts"
    CALL = "call"


@dataclass(slots=True)
class Block:
    """A stretch of an answer."""

    kind: BlockKind
    index: int
    """Its place in the row."""
    text: str = ""
    """Text, thoughts, or the JSON of a call's arguments; so far."""
    call_id: str = ""
    name: str = ""
    """Of the function that is called."""
    is_complete: bool = False
    """Whether the model ended it; one that was cut off never becomes complete."""


class Step(enum.Enum):
    """Event in the life of a content block."""

    OPENS = "opens"
    GAINS = "gains"
    CLOSES = "closes"


@dataclass(frozen=True, slots=True)
class Change:
    """One step of a block; `text` is what it gains."""

    step: Step
    block: Block
    text: str = ""


class BlockReader:
    """Reads one answer.

    Args:
        answer_format: What it may hold.
    """

    def __init__(self, answer_format: AnswerFormat) -> None:
        self._parser = AnswerParser(answer_format)
        self._open: Block | None = None
        self._num_pending_tokens = 0
        """Tokens whose text the parser has held back."""
        self._thinks = False
        """Whether the last part was a thought."""
        self.blocks: list[Block] = []
        self.num_reasoning_tokens = 0
        """Tokens of thoughts, their marks included; each step of the engine counts as a whole."""

    @property
    def num_calls(self) -> int:
        """Tool calls so far."""
        return self._parser.num_calls

    def read(self, piece: Piece, *, is_cut: bool = False) -> list[Change]:
        """Read more of the answer and return what changes.

        Args:
            piece: What was gained; with a finish reason it is the last.
            is_cut: Whether the answer ends before the model ended it.
        """
        parts = self._parser.feed(piece.text)
        ends = piece.finish_reason is not None
        if ends:
            parts += self._parser.finish()
        self._count(piece, parts)
        changes = [change for part in parts for change in self._take(part)]
        if ends:
            changes += self._close(is_complete=not is_cut)
        return changes

    def _count(self, piece: Piece, parts: list[Part]) -> None:
        """Add to the tokens of thoughts; what was held back behind them is their closing mark."""
        is_last = piece.finish_reason is not None
        if not parts and not is_last:
            self._num_pending_tokens += len(piece.token_ids)
            return
        goes_on = isinstance(parts[0], Reasoning) if parts else self._thinks
        if goes_on or self._thinks:
            self.num_reasoning_tokens += self._num_pending_tokens
        if goes_on:
            self.num_reasoning_tokens += len(piece.token_ids)
        self._num_pending_tokens = 0
        self._thinks = bool(parts) and isinstance(parts[-1], Reasoning)

    def _take(self, part: Part) -> Iterator[Change]:
        if isinstance(part, CallPiece):
            if part.id is not None:
                yield from self._start(BlockKind.CALL, part.id, part.name or "")
            text = part.arguments
        else:
            is_thought = isinstance(part, Reasoning)
            kind = BlockKind.THOUGHTS if is_thought else BlockKind.TEXT
            if self._open is None or self._open.kind is not kind:
                yield from self._start(kind)
            text = part.text if isinstance(part, Reasoning) else part
        if text:
            assert self._open is not None, "the first of a call has its id"
            self._open.text += text
            yield Change(Step.GAINS, self._open, text)

    def _start(self, kind: BlockKind, call_id: str = "", name: str = "") -> Iterator[Change]:
        """Open the next block, where the last one ends."""
        yield from self._close(is_complete=True)
        self._open = Block(kind, len(self.blocks), call_id=call_id, name=name)
        self.blocks.append(self._open)
        yield Change(Step.OPENS, self._open)

    def _close(self, *, is_complete: bool) -> Iterator[Change]:
        """Close the open block; a call is complete if its arguments are."""
        block, self._open = self._open, None
        if block is not None:
            is_call = block.kind is BlockKind.CALL
            block.is_complete = _is_json(block.text) if is_call else is_complete
            yield Change(Step.CLOSES, block)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
