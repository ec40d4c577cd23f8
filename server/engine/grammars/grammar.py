"""Grammars: which tokens may come next in a constrained request.

A GrammarSource says what a text must fit; a GrammarCompiler tries it out in a process of its own
and compiles it for the model's vocabulary; a Grammar follows one request token by token.
Compiling happens off the event loop, before the engine sees the request; afterwards the Grammar
belongs to its request. The language machinery is llguidance's.
Source: https://github.com/guidance-ai/llguidance/tree/main/docs
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from model.tokenizer import Tokenizer
from server.engine.grammars.grammar_check import EBNF, parser_limits

MAX_GRAMMAR_BYTES = 256 * 1024
"""Of a schema, regular expression or grammar as the engine reads it."""
CHECK_SECONDS = 20.0
"""Wall time of one check; its processor time is limited more tightly in there."""
_LOOK_SECONDS = 0.05
"""How often a check looks whether somebody still waits for it."""
_MAX_CACHED = 64
_PROGRAM = Path(__file__).with_name("grammar_check.py")
_PLACE = re.compile(r"^(?:at )?\d+\(\d+\): (?:failed to compile JSON schema: )?")
"""Where llguidance met an error: in its own text, not in the client's."""
_OTHER_WORDS: Mapping[str, str] = {
    "coerce_one_of": "'oneOf' is not supported; use 'anyOf'",
    "retrieving it failed": "'$ref' names another document, which is not fetched",
}
"""What llguidance says of its own options and parts, in a client's terms."""
_TOO_LARGE = "it takes too long or too much memory to compile"

Words = NDArray[np.int32]


class GrammarError(ValueError):
    """A grammar that cannot be used; the message says why, in a client's terms."""


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """Source of a grammar, as llguidance reads it."""

    text: str
    """A Lark grammar, llguidance's JSON form, or EBNF."""
    is_ebnf: bool = False


class Grammar:
    """The tokens one request may use, following its text.

    Args:
        matcher: Its own; nobody else advances it.
    """

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    @property
    def is_finished(self) -> bool:
        """Whether the text is complete and nothing can follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def is_broken(self) -> bool:
        """Whether the text cannot be continued: a step was too much, or a token did not fit."""
        return bool(self._matcher.is_error())

    def copy(self) -> Grammar:
        """Another follower at the same place."""
        return Grammar(self._matcher.deep_copy())

    def fill(self, words: Words) -> None:
        """Write which tokens may come next; other threads run meanwhile.

        Args:
            words: (mask_words(V),) bit i of word w stands for token 32 w + i.

        Raises:
            GrammarError: The step costs more than a step may.
        """
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        self._check()

    def accept(self, token_id: int) -> None:
        """Follow one token.

        Raises:
            GrammarError: The token does not fit.
        """
        self._matcher.consume_token(token_id)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = _first_line(self._matcher.get_error())
            raise GrammarError(f"The structured output could not be continued: {reason}.")


def mask_words(vocab_size: int) -> int:
    """32-bit words of a mask over a vocabulary and one end token of our own."""
    return (vocab_size + 1 + 31) // 32


def check_size(text: str) -> None:
    """Refuse a text too long to be a grammar, before anybody looks through it.

    Raises:
        GrammarError: It is.
    """
    size = len(text)
    if size <= MAX_GRAMMAR_BYTES:
        size = len(text.encode(errors="surrogatepass"))
    if size > MAX_GRAMMAR_BYTES:
        raise GrammarError(f"it must have at most {MAX_GRAMMAR_BYTES} bytes (got {size})")


class GrammarCompiler:
    """Compiles grammars for one vocabulary; any thread may call it.

    Args:
        tokenizer: The model's.
        vocab_size: V, the width of the model's logits.
        eos_token_ids: What ends a text.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, vocab_size: int, eos_token_ids: frozenset[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._vocabulary: LLTokenizer | None = None
        self._compiled: OrderedDict[GrammarSource, Grammar] = OrderedDict()
        self._lock = threading.Lock()
        self._compiling = threading.Lock()
        """Held while a grammar is compiled: one at a time keeps a core for everybody else."""

    def compile(self, source: GrammarSource, is_over: threading.Event | None = None) -> Grammar:
        """Compile a grammar, or copy it if it is known; takes up to seconds.

        Args:
            source: The grammar.
            is_over: Set when nobody waits for it any more, which ends the check of it.

        Raises:
            GrammarError: It is invalid, nothing fits it, it is too large, or it is over.
        """
        check_size(source.text)
        grammar = self._remembered(source)
        if grammar is not None:
            return grammar
        with self._compiling:
            grammar = self._remembered(source)  # somebody may have compiled it meanwhile
            if grammar is None:
                grammar = self._compile(source, is_over or threading.Event())
                self._remember(source, grammar)
        return grammar.copy()

    def knows(self, source: GrammarSource) -> bool:
        """Whether a grammar was compiled before."""
        with self._lock:
            return source in self._compiled

    def _remembered(self, source: GrammarSource) -> Grammar | None:
        """A copy of a grammar that was compiled before, None of any other."""
        with self._lock:
            if source not in self._compiled:
                return None
            self._compiled.move_to_end(source)
            return self._compiled[source].copy()

    def _remember(self, source: GrammarSource, grammar: Grammar) -> None:
        with self._lock:
            self._compiled[source] = grammar
            if len(self._compiled) > _MAX_CACHED:
                self._compiled.popitem(last=False)

    def _compile(self, source: GrammarSource, is_over: threading.Event) -> Grammar:
        text = _checked(source, is_over)
        if self._vocabulary is None:
            self._vocabulary = self._read_vocabulary()
        matcher = LLMatcher(self._vocabulary, text, log_level=0, limits=parser_limits())
        if not matcher.is_error():
            matcher.compute_bitmask()  # its first step may be too large for the real vocabulary
        if matcher.is_error():
            raise GrammarError(_first_line(matcher.get_error()))
        return Grammar(matcher)

    def _read_vocabulary(self) -> LLTokenizer:
        """The vocabulary as llguidance wants it, with an end token beyond it if it has none.

        Read for the first grammar: 50,000 tokens take a quarter of a second and 17 MiB, 260,000
        five times that, and most servers are never asked for one.
        """
        ends = sorted(end for end in self._eos_token_ids if end < self._vocab_size)
        vocabulary = _Vocabulary(self._tokenizer, self._vocab_size, ends or [self._vocab_size])
        return LLTokenizer(
            TokenizerWrapper(vocabulary),
            n_vocab=self._vocab_size + 1,
            eos_token=ends or [self._vocab_size],
        )


class _Vocabulary:
    """The tokens of a model as llguidance wants them."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, ends: Sequence[int]) -> None:
        known = min(vocab_size, tokenizer.vocab_size)
        self._tokenizer = tokenizer
        self.eos_token_id = ends[0]
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in range(known)]
        # What has no text of its own can be no part of a text.
        self.tokens += [b""] * (vocab_size - known) + [b"<end>"]
        special = {token_id for token_id in range(known) if tokenizer.is_special(token_id)}
        self.special_token_ids = sorted(special | set(ends) | {vocab_size})
        self._bytes = {data: i for i, data in enumerate(self.tokens) if len(data) == 1}

    def __call__(self, text: bytes) -> list[int]:
        """Ids whose bytes are exactly this text, the model's own way where it has one."""
        ids = self._tokenizer.encode(text.decode(), add_special_tokens=False)
        if b"".join(self.tokens[token_id] for token_id in ids if self._is_known(token_id)) == text:
            return ids
        return [self._bytes[byte] for byte in map(bytes, zip(text, strict=True))]

    def _is_known(self, token_id: int) -> bool:
        return token_id < len(self.tokens)


def _checked(source: GrammarSource, is_over: threading.Event) -> str:
    """The grammar's text, rewritten if it is EBNF, once a process of its own survived it.

    Raises:
        GrammarError: It did not, or it was over.
    """
    request = {"format": EBNF if source.is_ebnf else "llguidance", "text": source.text}
    with subprocess.Popen(  # noqa: S603 - our own program, and nothing of a client's in argv
        [sys.executable, "-P", "-s", str(_PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            printed = _until_over(process, json.dumps(request).encode(), is_over)
        finally:
            process.kill()
    if process.returncode != 0 or not printed:
        raise GrammarError(_TOO_LARGE)
    answer: dict[str, str] = json.loads(printed)
    if "error" in answer:
        raise GrammarError(_first_line(answer["error"]))
    return answer["grammar"]


def _until_over(
    process: subprocess.Popen[bytes], question: bytes, is_over: threading.Event
) -> bytes:
    """What the process answers; nothing if it is over before, or takes too long."""
    deadline = time.monotonic() + CHECK_SECONDS
    unsent: bytes | None = question
    while not is_over.is_set() and time.monotonic() < deadline:
        try:
            return process.communicate(unsent, timeout=_LOOK_SECONDS)[0]
        except subprocess.TimeoutExpired:
            unsent = None  # it is being sent
    return b""


def _first_line(message: str) -> str:
    """What llguidance says, without its drawings."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    for part, words in _OTHER_WORDS.items():
        if part in message:
            return words
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return _PLACE.sub("", (errors or lines or ["unknown"])[0])[:300]
