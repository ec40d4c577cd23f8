"""api.answers.choices: log-probabilities lined up with text, and numbers that JSON can carry."""

from __future__ import annotations

import math

import pytest
from fakes import EOS, FakeTokenizer

from server.api.answers.choices import LOWEST_LOGPROB, Choice, TokenNames, finite, join
from server.api.generation_call import AnswerOptions, EncodedPrompt
from server.errors import EngineUnavailableError, InternalError, InvalidRequestError
from server.request import FinishReason, Logprob, RequestOutput


def choice(*, prompt: str = "", **options: object) -> Choice:
    names = TokenNames(FakeTokenizer(), skip_special_tokens=True)
    text = EncodedPrompt(token_ids=tuple(prompt.encode()), text=prompt)
    return Choice(names, text, AnswerOptions(**{"logprobs": 0, **options}))


def output(text: str, tokens: bytes | tuple[int, ...] = b"", **fields: object) -> RequestOutput:
    logprobs = tuple(Logprob(token, -1.0) for token in tokens)
    return RequestOutput(
        request_id="r", text=text, token_ids=tuple(tokens), logprobs=logprobs, **fields
    )


def names(piece) -> list[str]:
    return [scored.token.name for scored in piece.scored]


def test_tokens_wait_for_their_text():
    """A token whose text is held back is not shown before it."""
    one = choice()
    assert names(one.advance(output("", b"S"))) == []
    assert names(one.advance(output("S", b"T"))) == ["S"]
    assert names(one.advance(output("Tx", b"x"))) == ["T", "x"]


def test_tokens_behind_a_stop_string_are_dropped():
    """What was cut from the text is not in the log-probabilities either."""
    one = choice()
    one.advance(output("a", b"a"))
    one.advance(output("", b"E"))
    last = output("", b"N", finish_reason=FinishReason.STOP, stop_reason="EN")
    assert names(one.advance(last)) == []


def test_a_kept_stop_string_keeps_its_tokens():
    """With include_stop_str_in_output nothing is cut."""
    one = choice(include_stop=True)
    last = output("aEN", b"aEN", finish_reason=FinishReason.STOP, stop_reason="EN")
    assert names(one.advance(last)) == ["a", "E", "N"]


def test_the_end_token_is_shown_with_no_bytes():
    """It was generated and has a log-probability, but adds nothing to the text."""
    (scored,) = choice().advance(output("", (EOS,), finish_reason=FinishReason.STOP)).scored
    assert (scored.token.name, scored.token.data) == ("<eos>", b"")


def test_offsets_count_characters_of_the_text():
    """Tokens of one character share the offset where it begins; an echo counts."""
    one = choice(prompt="né", echo=True)
    prompt = (None, *(Logprob(token, -1.0) for token in "né".encode()[1:]))
    piece = one.advance(output("é!", "é!".encode(), prompt_logprobs=prompt))
    assert piece.text == "néé!"
    assert [scored.offset for scored in piece.scored] == [0, 1, 1, 2, 2, 3]
    assert names(piece)[1:3] == ["bytes:\\xc3", "bytes:\\xa9"]
    assert piece.scored[0].logprob is None


@pytest.mark.parametrize(
    ("value", "shown"),
    [(-math.inf, LOWEST_LOGPROB), (math.nan, LOWEST_LOGPROB), (1e-9, 0.0), (-2.5, -2.5)],
)
def test_log_probabilities_are_finite_and_not_positive(value, shown):
    """JSON has no infinity, and rounding may not make a probability larger than one."""
    assert finite(value) == shown


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (FinishReason.ERROR, InternalError),
        (FinishReason.ABORT, EngineUnavailableError),
        (FinishReason.REFUSED, InvalidRequestError),
    ],
)
def test_a_failed_request_raises(reason, kind):
    """Its sentence reaches the client as an error, never as an answer."""
    with pytest.raises(kind, match="why"):
        choice().advance(output("", finish_reason=reason, error="why"))


def test_pieces_join_to_the_whole():
    """Text, tokens and the end, in order."""
    one = choice()
    pieces = [
        one.advance(output("a", b"a")),
        one.advance(output("b", b"b", finish_reason=FinishReason.LENGTH)),
    ]
    whole = join(pieces)
    assert (whole.text, whole.token_ids, names(whole)) == ("ab", (97, 98), ["a", "b"])
    assert whole.finish_reason is FinishReason.LENGTH
