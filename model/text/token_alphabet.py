"""How the tokens of a vocabulary spell bytes: as byte-level BPE does, or as SentencePiece does.

Owned by the tokenizer; knows nothing of ids.
"""

from __future__ import annotations

import enum
import re

SPACE_MARK = "\u2581"
"""SentencePiece's visible space."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_level_letters() -> dict[str, int]:
    """Map the printable letters of byte-level BPE to the bytes they stand for.

    Bytes that print stand for themselves and the others for the letters from U+0100 on, in order.
    Source: the encoder published with GPT-2.
    """
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(printing)]
    letters = {chr(byte): byte for byte in printing}
    letters.update({chr(0x100 + index): byte for index, byte in enumerate(hidden)})
    return letters


_LETTERS = _byte_level_letters()


class Alphabet(enum.Enum):
    """The two spellings of bytes."""

    BYTE_LEVEL = "byte-level"
    """Each letter of a token is one byte."""
    SENTENCEPIECE = "sentencepiece"
    """Tokens are text with a mark for the space; `<0x0A>` is a single byte."""
    SENTENCEPIECE_PREFIXED = "sentencepiece with a space before the text"
    """The same, and a text's first token carries a space that is not in the text."""

    @property
    def adds_leading_space(self) -> bool:
        """Whether a decoded text begins with a space that was not in it."""
        return self is Alphabet.SENTENCEPIECE_PREFIXED

    def to_bytes(self, token: str) -> bytes:
        """Return the bytes that a token of the vocabulary stands for."""
        if self is Alphabet.BYTE_LEVEL:
            try:
                return bytes(_LETTERS[letter] for letter in token)
            except KeyError:
                return token.encode()
        if match := _BYTE_TOKEN.fullmatch(token):
            return bytes.fromhex(match[1])
        return token.replace(SPACE_MARK, " ").encode()
