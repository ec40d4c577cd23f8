"""TokenMasks: which tokens a step may choose for its constrained requests, found in time.

Masks are filled on a thread of their own while the model runs, as neither needs Python meanwhile.
Owned by the engine. A Grammar advances elsewhere (output_processor), never during a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from server.engine.grammars.grammar import GrammarError, Words, mask_words
from server.request import Request, TokenConstraint


@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """Token bitmasks of one step."""

    words: Words | None = None
    """(B, words) bit i of word w stands for token 32 w + i; None is everything."""
    failed: Mapping[int, str] = field(default_factory=dict)
    """Row -> why its mask could not be found, a sentence for the client."""


_EVERYTHING = AllowedTokens()


class TokenMasks:
    """Finds the masks of one step at a time.

    Args:
        vocab_size: V, the width of the logits.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="masks")
        self._filled: Future[tuple[Words, dict[int, str]]] | None = None

    def begin(self, requests: Sequence[Request]) -> None:
        """Start on the masks of the requests (B,) whose next tokens this step chooses."""
        grammars: list[tuple[int, TokenConstraint]] = []
        self._filled = None
        for row, request in enumerate(requests):
            if request.grammar:
                grammars.append((row, request.grammar))
        if grammars:
            shape = (len(requests), mask_words(self._vocab_size))
            self._filled = self._thread.submit(_fill, np.full(shape, -1, np.int32), grammars)

    def finish(self) -> AllowedTokens:
        """Wait for what `begin` started."""
        if self._filled is None:
            return _EVERYTHING
        words, failed = self._filled.result()
        return AllowedTokens(words, failed)


def _fill(
    words: Words, grammars: Sequence[tuple[int, TokenConstraint]]
) -> tuple[Words, dict[int, str]]:
    failed = {}
    for row, grammar in grammars:
        try:
            grammar.fill(words[row])
        except GrammarError as error:
            failed[row] = str(error)
            words[row] = -1
    return words, failed
