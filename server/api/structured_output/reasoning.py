"""ReasoningParser: the thoughts at the beginning of an answer, told apart from the answer.

A model that reasons writes `<think>...</think>` first; some templates open the tag themselves.
White space around thoughts and in front of the answer is dropped. Knows no wire format.
"""

from __future__ import annotations

from dataclasses import dataclass

OPENING, CLOSING = "<think>", "</think>"
_SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the model's thoughts."""

    text: str


class ReasoningParser:
    """Splits one answer, which arrives in pieces.

    Args:
        is_open: Whether the prompt ends with the opening tag.
    """

    def __init__(self, *, is_open: bool) -> None:
        self._pending = ""
        self._thought = False
        """Whether a piece of the current part was returned, so that white space counts."""
        self._step = self._read_thoughts if is_open else self._read_start
        self._found: list[str | Reasoning] = []

    def feed(self, text: str) -> list[str | Reasoning]:
        """Read more of the answer and return what is certain."""
        self._pending += text
        while self._pending and self._step():
            pass
        found, self._found = self._found, []
        return found

    def finish(self) -> list[str | Reasoning]:
        """The answer has ended: return what was held back."""
        held, self._pending = self._pending, ""
        if self._step == self._read_thoughts:
            thoughts = held.rstrip(_SPACE) if self._thought else held.strip(_SPACE)
            return [Reasoning(thoughts)] if thoughts else []
        return [held] if held and self._step == self._read_start else []

    # Each step reads from _pending; it returns False when it needs more.

    def _read_start(self) -> bool:
        text = self._pending.lstrip(_SPACE)
        if text.startswith(OPENING):
            self._pending, self._step = text[len(OPENING) :], self._read_thoughts
            return True
        if OPENING.startswith(text):
            return False
        self._step = self._read_answer
        self._thought = True
        return True

    def _read_thoughts(self) -> bool:
        text = self._pending if self._thought else self._pending.lstrip(_SPACE)
        thoughts, closing, answer = text.partition(CLOSING)
        certain = thoughts.rstrip(_SPACE) if closing else thoughts[: _certain_length(thoughts)]
        if certain:
            self._found.append(Reasoning(certain))
            self._thought = True
        if not closing:
            self._pending = text[len(certain) :]
            return False
        self._pending, self._thought, self._step = answer, False, self._read_answer
        return True

    def _read_answer(self) -> bool:
        text = self._pending if self._thought else self._pending.lstrip(_SPACE)
        if text:
            self._found.append(text)
            self._thought = True
        self._pending = ""
        return False


def _certain_length(text: str) -> int:
    """How much of the text is neither the beginning of a closing tag nor white space before it."""
    longest = min(len(CLOSING) - 1, len(text))
    held = next((size for size in range(longest, 0, -1) if text.endswith(CLOSING[:size])), 0)
    return len(text[: len(text) - held].rstrip(_SPACE))
