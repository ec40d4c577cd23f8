"""Random texts that fit a grammar, over a vocabulary of bytes."""

from __future__ import annotations

import random

import numpy as np
from fakes import EOS, VOCAB_SIZE, FakeTokenizer

from server.engine.grammars.grammar import Grammar, GrammarCompiler, mask_words


def byte_compiler() -> GrammarCompiler:
    """A compiler whose vocabulary is FakeTokenizer's."""
    return GrammarCompiler(FakeTokenizer(), vocab_size=VOCAB_SIZE, eos_token_ids=frozenset({EOS}))


def allowed_ids(grammar: Grammar, vocab_size: int = VOCAB_SIZE) -> list[int]:
    """The tokens that may come next."""
    words = np.zeros(mask_words(vocab_size), np.int32)
    grammar.fill(words)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    return [int(token_id) for token_id in np.flatnonzero(bits)]


def random_text(grammar: Grammar, seed: int, *, steps: int = 400) -> str | None:
    """A text that takes any way through the grammar, None if it did not end in time.

    Ends are taken more often than chance would have it, so that most texts do end.
    """
    chance = random.Random(seed)
    data = b""
    for _ in range(steps):
        ids = allowed_ids(grammar)
        ends = [token_id for token_id in ids if token_id in (EOS, *b'"}],')]
        token_id = chance.choice(ends if ends and chance.random() < 0.5 else ids)
        grammar.accept(token_id)
        if token_id == EOS:
            return data.decode()
        data += bytes([token_id])
        if grammar.is_finished:
            return data.decode()
    return None
