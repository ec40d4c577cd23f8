"""ControlTokens: keeps what users write apart from the control tokens that a template writes.

The spelling of a control token inside a user's string is wrapped in marks before the template
sees it. The marks survive concatenation, trimming and JSON, and say afterwards which stretches of
the rendered text must stay text. Strings without such a spelling are left alone.
Owned by the tokenizer; renders nothing and knows no ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from model.errors import TokenizerError

_OPEN, _CLOSE, _BREAK = "\ufdd2", "\ufdd3", "\ufdd4"
"""Noncharacters, which Unicode reserves for internal use; in a user's string they are dropped."""

_MARK = re.compile(f"[{_OPEN}{_CLOSE}{_BREAK}]")
_MARKED = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}{_BREAK}]*){_CLOSE}|{_MARK.pattern}")

MAX_SPELLING = 512
"""Characters of a control token: all its beginnings and ends are remembered."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a prompt: what a template wrote, or a spelling that must stay text.

    Where two segments meet, no control token reaches across.
    """

    text: str
    is_template: bool


class ControlTokens:
    """The spellings that only a template may use.

    Args:
        spellings: The text of every control token.
    """

    def __init__(self, spellings: Iterable[str]) -> None:
        self.spellings = tuple(sorted(filter(None, spellings)))
        longest = max(map(len, self.spellings), default=0)
        if longest > MAX_SPELLING:
            raise TokenizerError(
                f"A control token has {longest} characters; at most {MAX_SPELLING} are served."
            )
        self._spelling = re.compile(_any_of(self.spellings) if self.spellings else "(?!)")
        self._beginnings = frozenset(s[:cut] for s in self.spellings for cut in range(1, len(s)))
        self._endings = frozenset(s[cut:] for s in self.spellings for cut in range(1, len(s)))
        self._reach = max(map(len, self._beginnings), default=0)

    def mark(self, value: object) -> object:
        """Return a copy of JSON data in which every spelling of a control token is marked.

        A string that ends like the beginning of a control token, or begins like the end of one,
        gets a mark there, so that a template cannot put a token together from two strings.
        """
        if isinstance(value, str):
            return self._mark_text(value)
        if isinstance(value, Mapping):
            return {self.mark(key): self.mark(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.mark(item) for item in value]
        return value

    def mark_all(self, turns: Iterable[Mapping[str, object]]) -> list[dict[str, object]]:
        """Mark the messages of a conversation."""
        return [{str(self.mark(key)): self.mark(turn[key]) for key in turn} for turn in turns]

    @staticmethod
    def split(rendered: str) -> list[Segment]:
        """Split rendered text at its marks, which are not part of the segments.

        A mark that lost its partner, because the template cut a string, still ends a segment.
        """
        segments: list[Segment] = []
        end = 0
        for match in _MARKED.finditer(rendered):
            segments.append(Segment(rendered[end : match.start()], is_template=True))
            if match[1]:
                segments.append(Segment(match[1], is_template=False))
            end = match.end()
        segments.append(Segment(rendered[end:], is_template=True))
        return [segment for segment in segments if segment.text]

    def _mark_text(self, text: str) -> str:
        text = _MARK.sub("", text)
        marked = self._spelling.sub(f"{_OPEN}\\g<0>{_CLOSE}", text)
        lengths = range(1, min(self._reach, len(text)) + 1)
        if any(text[-length:] in self._beginnings for length in lengths):
            marked += _BREAK
        if any(text[:length] in self._endings for length in lengths):
            marked = _BREAK + marked
        return marked


def _any_of(words: Iterable[str]) -> str:
    """Write an expression for the longest of many words, sharing their beginnings.

    A plain alternation of thousands of words would be tried one by one at each "<" of a text.
    """
    tree: dict[str, Any] = {}
    for word in words:
        node = tree
        for letter in word:
            node = node.setdefault(letter, {})
        node[""] = {}
    return _branches(tree)


def _branches(node: dict[str, Any]) -> str:
    branches = [re.escape(letter) + _branches(child) for letter, child in node.items() if letter]
    if "" in node:
        return f"(?:{'|'.join(branches)})?" if branches else ""
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
