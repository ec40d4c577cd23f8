"""CallScanner: one JSON object that may be a tool call, read character by character.

Says as soon as it is certain which function is called, and hands on the characters of the
arguments as the model wrote them. Knows nothing of what stands around the object.
"""

from __future__ import annotations

import json
from collections.abc import Collection

_ARGUMENTS = ("arguments", "parameters")
_SPACE = " \t\r\n"


class CallScanner:
    """Reads `{"name": ..., "arguments": {...}}`, in any order and with other keys between.

    Arguments may also be JSON in a string, and may be absent: then they are `{}`.

    Args:
        names: The functions that may be called; an object that names another is no call.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._reads_value = False
        self._key = ""
        self._text: list[str] = []
        """Characters of the current key or value at the top level."""
        self._fresh: list[str] = []
        """Certain characters of the arguments that were not taken yet."""
        self._space = ""
        """White space behind them, part of the arguments once something follows."""
        self._arguments_began = False
        self._has_arguments = False
        self.name: str | None = None
        """The function, once it is certain."""
        self.is_complete = False
        self.is_broken = False
        """Whether this cannot become a call any more."""

    @property
    def is_call(self) -> bool:
        """Whether this is certainly a call: the function is known and its arguments begin."""
        return self.name is not None and (self.is_complete or self._arguments_began)

    def take_arguments(self) -> str:
        """The characters of the arguments that were not taken yet."""
        fresh, self._fresh = self._fresh, []
        return "".join(fresh)

    def push(self, char: str) -> None:
        """Read one character; the first is the opening brace."""
        assert not self.is_complete, "the object has ended"
        if self._in_string:
            self._push_inside_string(char)
        elif char == '"':
            self._in_string = True
            self._keep(char)
        elif char in "{[":
            self._depth += 1
            if self._depth > 1:
                self._keep(char)
        elif char in "}]":
            self._depth -= 1
            self._close(char)
        elif self._depth == 1 and char in ":,":
            self._separate(char)
        else:
            self._keep(char)

    @property
    def _reads_arguments(self) -> bool:
        """Whether the current value is the object of arguments."""
        return self._key in _ARGUMENTS and self._text[0] == "{" and not self._has_arguments

    def _push_inside_string(self, char: str) -> None:
        self._keep(char)
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False

    def _keep(self, char: str) -> None:
        """Add a character to the key or value it belongs to; pass arguments on at once."""
        if char in _SPACE and not self._text:
            return
        self._text.append(char)
        if not self._reads_value:
            self.is_broken |= self._text[0] != '"'
        elif not self._reads_arguments:
            return
        elif char in _SPACE and not self._in_string:
            self._space += char
        else:
            self._say_argument(self._space + char)
            self._space = ""

    def _say_argument(self, text: str) -> None:
        self._fresh.append(text)
        self._arguments_began = True

    def _close(self, char: str) -> None:
        if self._depth > 0:
            self._keep(char)
            return
        if char == "]" or (self._text and not self._reads_value):
            self.is_broken = True
            return
        self._end_value()
        self.is_broken |= self.name is None
        if not self.is_broken:
            self.is_complete = True
            if not self._arguments_began:
                self._say_argument("{}")

    def _separate(self, char: str) -> None:
        if char == ":" and not self._reads_value:
            key = _parsed("".join(self._text))
            self.is_broken |= not isinstance(key, str)
            self._key, self._text, self._reads_value = str(key), [], True
        elif char == "," and self._reads_value:
            self._end_value()
            self._reads_value = False
        else:
            self.is_broken = True

    def _end_value(self) -> None:
        text, self._text, self._space = "".join(self._text), [], ""
        if self._key == "name" and self.name is None:
            name = _parsed(text)
            self.name = name if isinstance(name, str) and name in self._names else None
            self.is_broken |= self.name is None
        elif self._key in _ARGUMENTS and text and not self._has_arguments:
            self._end_arguments(text)
        self._key = ""

    def _end_arguments(self, text: str) -> None:
        self._has_arguments = True
        if text[0] == "{" or text == "null":
            return
        spelt = _parsed(text)
        if isinstance(spelt, str) and isinstance(_parsed(spelt), dict):
            self._say_argument(spelt)
        else:
            self.is_broken = True


def _parsed(text: str) -> object:
    """The JSON value, or None."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value
