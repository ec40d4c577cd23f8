"""Texts that follow a grammar's masks fit it, and no grammar does harm."""

import json
import re
import threading

import numpy as np
import pytest
from fakes import BOS, EOS, FakeTokenizer
from grammars import allowed_ids, byte_compiler, random_text

from server.engine.grammars.grammar import (
    MAX_GRAMMAR_BYTES,
    GrammarCompiler,
    GrammarError,
    GrammarSource,
)
from server.engine.grammars.grammar import mask_words as words_of

SEEDS = range(20)
DEEP = 1500


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return byte_compiler()


def lark(text: str) -> GrammarSource:
    return GrammarSource(text)


@pytest.mark.parametrize("regex", ["[0-9]{3}-[0-9]{4}", "(a|bc)*d?", "[à-ü]{2}x+", "[^a-z]{1,5}"])
def test_texts_match_their_expression(compiler, regex):
    """Whatever way is taken, Python's own engine agrees."""
    grammar = compiler.compile(lark(f"start: /{regex}/"))
    for seed in SEEDS:
        text = random_text(grammar.copy(), seed)
        assert text is None or re.fullmatch(regex, text)


def test_a_complete_text_ends_at_once(compiler):
    """No end token is needed where nothing can follow."""
    grammar = compiler.compile(lark('start: "ab"'))
    grammar.accept(ord("a"))
    assert not grammar.is_finished
    grammar.accept(ord("b"))
    assert grammar.is_finished


def test_the_end_is_allowed_only_where_the_text_is_complete(compiler):
    """The end token may be chosen after one a, not before."""
    grammar = compiler.compile(lark("start: /a+/"))
    assert allowed_ids(grammar) == [ord("a")]
    grammar.accept(ord("a"))
    assert allowed_ids(grammar) == [ord("a"), EOS]
    assert not grammar.is_finished
    grammar.accept(EOS)
    assert grammar.is_finished


def test_control_tokens_are_no_text(compiler):
    """A text of anything can hold every byte but no control token, though it may spell one."""
    ids = allowed_ids(compiler.compile(lark(r"start: /(.|\n)*/")))
    assert BOS not in ids
    assert ord("<") in ids


def test_ebnf_is_read_as_well(compiler):
    """A rule named root is where it starts."""
    grammar = compiler.compile(GrammarSource('root ::= "yes" | "no"', is_ebnf=True))
    assert {random_text(grammar.copy(), seed) for seed in SEEDS} == {"yes", "no"}


def test_copies_go_their_own_ways(compiler):
    """What one request says is nothing to another with the same grammar."""
    first, second = (compiler.compile(lark("start: /ab|ac/")) for _ in range(2))
    first.accept(ord("a"))
    first.accept(ord("b"))
    assert allowed_ids(second) == [ord("a")]


def test_a_token_that_does_not_fit_is_an_error(compiler):
    """The grammar says so, and stays out of order."""
    grammar = compiler.compile(lark('start: "ab"'))
    with pytest.raises(GrammarError):
        grammar.accept(ord("x"))
    assert not grammar.is_finished


def test_a_vocabulary_without_an_end_still_ends():
    """Where the model has no end token, complete texts end by themselves."""
    compiler = GrammarCompiler(FakeTokenizer(), vocab_size=300, eos_token_ids=frozenset({5000}))
    grammar = compiler.compile(lark('start: "a"'))
    assert allowed_ids(grammar, 300) == [ord("a")]
    grammar.accept(ord("a"))
    assert grammar.is_finished


def test_the_mask_has_room_for_every_vocabulary():
    """One bit for each token and one for an end of our own."""
    assert [words_of(size) for size in (31, 32, 63, 64)] == [1, 2, 2, 3]
    assert np.dtype(np.int32).itemsize == 4


@pytest.mark.parametrize(
    "text",
    [
        "start: (",
        "no rules",
        "start: /(a/",
        "start: /a(?=b)/",
        'start: %json {"type": "objekt"}',
        'start: %json {"not": {}}',
        'start: %json {"$ref": "#"}',
        "start: /" + "(" * 100_000 + "a" + ")" * 100_000 + "/",
        "start: a0\n" + "".join(f"a{i}: a{i + 1}\n" for i in range(DEEP)) + f'a{DEEP}: "x"',
        "start: A0\n" + "".join(f'A{i}: A{i + 1} "y"\n' for i in range(DEEP)) + f'A{DEEP}: "x"',
        'start: %json {"$ref": "#/$defs/a0", "$defs": '
        + json.dumps({f"a{i}": {"items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(DEEP)})
        + "}",
        "x" * (MAX_GRAMMAR_BYTES + 1),
    ],
    ids=lambda text: text[:30],
)
def test_bad_grammars_are_refused_in_a_sentence(compiler, text):
    """Invalid, too deep or too large: the message is one line, and the process lives."""
    with pytest.raises(GrammarError) as error:
        compiler.compile(lark(text))
    assert "\n" not in str(error.value)
    assert 5 < len(str(error.value)) < 400


def test_many_threads_may_compile(compiler):
    """Equal and different grammars at once come out right."""
    found: list[list[int]] = []

    def compile_one(letter: str) -> None:
        found.append(allowed_ids(compiler.compile(lark(f'start: "{letter}"'))))

    threads = [threading.Thread(target=compile_one, args=(letter,)) for letter in "aabb"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [[97], [97], [98], [98]]
