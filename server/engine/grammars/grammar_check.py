"""The program that tries a grammar out, in a process of its own that can be ended at any time.

A grammar comes from a client and may be hostile: deep enough to overflow a stack, or large enough
to keep a core and gigabytes of memory busy. What passes here, with a small stack and strict limits,
is safe to compile in the server.
Reads one JSON object {"format", "text"} on standard input and answers {"grammar"} or {"error"}.
Imports nothing of this project, so that it starts fast.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import any_to_lark

CPU_SECONDS = 3
MEMORY_BYTES = 1 << 30
STACK_BYTES = 1 << 20
"""An eighth of what a thread of the server has."""
NICENESS = 10
"""Whoever is served meanwhile has the processors first."""
EBNF = "ebnf"
"""The one format that has to be rewritten; everything else is llguidance's own."""


def parser_limits() -> LLParserLimits:
    """What compiling and each step of a grammar may cost, here and in the server."""
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=100_000,
        step_max_items=50_000,
        max_lexer_states=20_000,
        max_grammar_size=200_000,
        precompute_large_lexemes=False,
        verbose_errors=False,
    )


class ByteVocabulary:
    """The smallest vocabulary there is: every byte, and an end."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids = (256,)

    def __call__(self, text: bytes) -> list[int]:
        """The bytes of the text, which are its ids."""
        return list(text)


def check(request: dict[str, str]) -> dict[str, str]:
    """Rewrite and compile a grammar, and take its first step."""
    text = request["text"]
    if request["format"] == EBNF:
        try:
            text = LLMatcher.grammar_from_lark(any_to_lark(text))
        except Exception as error:  # noqa: BLE001 - whatever a grammar provokes is its own fault
            return {"error": str(error)}
    tokenizer = LLTokenizer(TokenizerWrapper(ByteVocabulary()), slices=[])
    matcher = LLMatcher(tokenizer, text, log_level=0, limits=parser_limits())
    nothing_fits = not matcher.is_error() and not any(matcher.compute_bitmask())
    if matcher.is_error():
        return {"error": matcher.get_error()}
    return {"error": "no text fits it"} if nothing_fits else {"grammar": text}


def main() -> None:
    """Answer one request within the limits."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    threading.stack_size(STACK_BYTES)
    os.nice(NICENESS)
    request = json.load(sys.stdin)
    thread = threading.Thread(target=lambda: json.dump(check(request), sys.stdout))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
