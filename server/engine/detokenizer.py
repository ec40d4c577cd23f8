"""Detokenizer: the tokens of one request, as they come, turned into text that may be sent.

Holds back half characters and what may still become a stop string, nothing else.
Owned by the engine, one per request; knows no chunks and no events.
"""

from __future__ import annotations

import codecs
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from server.request import SamplingParams


class TokenSpeller(Protocol):
    """The part of a tokenizer that detokenising needs."""

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes a token adds to the text."""

    def is_special(self, token_id: int) -> bool:
        """Tell whether a token is a control token."""


class Spelling(NamedTuple):
    """What a token adds to a text."""

    data: bytes
    text: str | None
    """The same as text, if it is made of whole characters."""
    is_special: bool


class RememberedSpeller:
    """Asks a tokenizer for each token once, as the same few come again and again.

    Args:
        tokenizer: Whom to ask.
    """

    def __init__(self, tokenizer: TokenSpeller) -> None:
        self._tokenizer = tokenizer
        self._spellings: dict[int, Spelling] = {}

    def spell(self, token_id: int) -> Spelling:
        """Return what a token adds to the text."""
        spelling = self._spellings.get(token_id)
        if spelling is None:
            data = self._tokenizer.token_bytes(token_id)
            spelling = Spelling(data, _as_text(data), self._tokenizer.is_special(token_id))
            self._spellings[token_id] = spelling
        return spelling


def _as_text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


class Detokenizer:
    """The growing text of one request.

    Bytes that can never become a character turn into U+FFFD at once; the beginning of a character
    waits for its end, and is dropped if the end never comes.

    Args:
        speller: Spells the tokens; may be shared.
        params: Its stop strings, min_tokens, skip_special_tokens and include_stop_str_in_output
            are what counts here.
    """

    def __init__(self, speller: RememberedSpeller, params: SamplingParams) -> None:
        self._speller = speller
        self._skip_special_tokens = params.skip_special_tokens
        self._shown_token_ids = params.shown_token_ids
        self._include_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._stops = StopStrings(params.stop) if params.stop else None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_amid_character = False
        self._num_tokens = 0
        self._held = ""
        self._stopped = False

    def append(self, token_id: int) -> tuple[str, str | None]:
        """Take the next token.

        A stop string that is complete before `min_tokens` tokens ends nothing.

        Returns:
            The text that became certain, so that no later token can change it, and the stop string
            that ended the request, if one did.
        """
        text = self._text_of(token_id)
        if self._stops is None:  # nothing is ever held
            return text, None
        assert not self._stopped, "a stopped request got another token"
        self._num_tokens += 1
        return self._advance(self._held + text, self._stops)

    def flush(self) -> str:
        """Return what was held back as a possible stop string; the request has ended."""
        text, self._held = self._held, ""
        return text

    def _text_of(self, token_id: int) -> str:
        """Return the characters that this token completes."""
        data, text, is_special = self._speller.spell(token_id)
        if is_special and self._skip_special_tokens and token_id not in self._shown_token_ids:
            return ""
        if text is None or self._is_amid_character:
            text = self._decoder.decode(data)
            self._is_amid_character = bool(self._decoder.getstate()[0])
        return text

    def _advance(self, text: str, stops: StopStrings) -> tuple[str, str | None]:
        """Release what is certain of the held and the new text, and look for a stop string."""
        found = stops.find(text, checked=len(self._held))
        if found is not None and self._num_tokens >= self._min_tokens:
            stop, start = found
            self._held, self._stopped = "", True
            return text[: start + len(stop) if self._include_stop else start], stop
        certain = len(text) - stops.overlap(text)
        self._held = text[certain:]
        return text[:certain], None


class StopStrings:
    """The stop strings of one request, ready to be looked for again and again."""

    def __init__(self, stops: Iterable[str]) -> None:
        # Longest first, so that of several that end together the longest is met first.
        self._stops = sorted(set(stops), key=len, reverse=True)
        self._alphabetical = sorted(self._stops)
        self._first_characters = {stop[0] for stop in self._stops}
        self._longest_beginning = max(map(len, self._stops), default=1) - 1

    def find(self, text: str, *, checked: int) -> tuple[str, int] | None:
        """Find the stop string that is complete first, reading character by character.

        Args:
            text: Where to look.
            checked: How many characters were looked at before; a match ends behind them.

        Returns:
            The stop string and where it starts, the longest if several end together.
        """
        first: tuple[str, int] | None = None
        end = len(text)
        for stop in self._stops:
            start = text.find(stop, max(0, checked + 1 - len(stop)), end)
            if start >= 0 and (first is None or start + len(stop) < end):
                first, end = (stop, start), start + len(stop)
        return first

    def overlap(self, text: str) -> int:
        """Return the length of the longest ending of text that a stop string begins with."""
        for length in range(min(self._longest_beginning, len(text)), 0, -1):
            if text[-length] in self._first_characters and self._is_beginning(text[-length:]):
                return length
        return 0

    def _is_beginning(self, text: str) -> bool:
        """Whether a stop string goes on behind this text."""
        # Those that do follow it in the alphabet, before anything else does: no need to keep a
        # set of all beginnings, which would grow with the square of their length.
        index = bisect_right(self._alphabetical, text)
        following = self._alphabetical[index : index + 1]
        return any(stop.startswith(text) for stop in following)
