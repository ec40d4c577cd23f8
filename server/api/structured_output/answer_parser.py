"""AnswerParser: one answer's text, in pieces, as thoughts, ordinary text and tool calls.

AnswerFormat says what to look for; without it text is text. Knows no wire format.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.api.structured_output.reasoning import Reasoning, ReasoningParser
from server.api.structured_output.tool_calls import CallPiece, ToolCallParser, ToolFormat

Part = str | Reasoning | CallPiece
"""A piece of an answer; a string is ordinary text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerFormat:
    """Answer format: the thoughts and tool calls that may stand beside text."""

    reasons: bool = False
    reasoning_is_open: bool = False
    """Whether the prompt ends inside the thoughts."""
    tool_format: ToolFormat | None = None
    tool_names: frozenset[str] = frozenset()
    is_call: bool = False
    """Whether the answer can be nothing but calls."""

    @property
    def is_text(self) -> bool:
        """Whether all of the answer is ordinary text."""
        return not self.reasons and self.tool_format is None


PLAIN_TEXT = AnswerFormat()


class AnswerParser:
    """Takes one answer apart.

    Args:
        answer_format: What it may hold.
    """

    def __init__(self, answer_format: AnswerFormat) -> None:
        self._reasoning = (
            ReasoningParser(is_open=answer_format.reasoning_is_open)
            if answer_format.reasons
            else None
        )
        self._tools = (
            ToolCallParser(
                answer_format.tool_format,
                answer_format.tool_names,
                is_call=answer_format.is_call,
            )
            if answer_format.tool_format is not None
            else None
        )

    @property
    def num_calls(self) -> int:
        """Tool calls found so far."""
        return 0 if self._tools is None else self._tools.num_calls

    def feed(self, text: str) -> list[Part]:
        """Read more of the answer and return what is certain."""
        if not text:
            return []
        parts: list[Part] = []
        for part in [text] if self._reasoning is None else self._reasoning.feed(text):
            parts += self._read(part)
        return parts

    def finish(self) -> list[Part]:
        """The answer has ended: return what was held back."""
        parts: list[Part] = []
        for part in [] if self._reasoning is None else self._reasoning.finish():
            parts += self._read(part)
        return parts + list(self._tools.finish() if self._tools is not None else [])

    def _read(self, part: str | Reasoning) -> list[Part]:
        if isinstance(part, Reasoning) or self._tools is None:
            return [part]
        return list(self._tools.feed(part))
