"""TokenizerParts: what the readers of tokenizer files hand to the Tokenizer."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer as Backend

from model.text.token_alphabet import Alphabet


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """A vocabulary with its rules, and what the files say about the beginning and end of text."""

    backend: Backend
    alphabet: Alphabet
    prefix: tuple[int, ...]
    """Ids before every text."""
    suffix: tuple[int, ...]
    """Ids after every text."""
    bos_token: str | None
    eos_token: str | None
