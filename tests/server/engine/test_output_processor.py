"""engine.output_processor: what a chosen token brings, and whose fault it is if it cannot."""

from __future__ import annotations

import pytest
from engines import make_request
from fakes import EOS, FakeTokenizer

from server.engine.grammars.grammar import GrammarError
from server.engine.output_processor import OutputProcessor
from server.request import FinishReason


class Broken:
    """A grammar that accepts nothing.

    Args:
        error: What it raises.
    """

    is_finished = False

    def __init__(self, error: Exception) -> None:
        self._error = error

    def accept(self, _token_id: int) -> None:
        raise self._error


@pytest.fixture
def processor() -> OutputProcessor:
    return OutputProcessor(FakeTokenizer(), frozenset({EOS}))


def process(processor: OutputProcessor, text: str, **params: object):
    """The outputs of a request that says this."""
    request = make_request([1], **params)
    processor.add(request)
    return [processor.process(request, token_id, None) for token_id in text.encode()]


def test_tokens_become_text_until_the_limit(processor):
    """Each output has what its token brings, and the last says why it is the last."""
    outputs = process(processor, "abc", max_tokens=3)
    assert [output.text for output in outputs] == ["a", "b", "c"]
    assert [output.finish_reason for output in outputs] == [None, None, FinishReason.LENGTH]
    assert outputs[-1].num_output_tokens == 3


def test_a_stop_token_counts_from_min_tokens_on(processor):
    """Before that it is a token like any other; the output names it."""
    outputs = process(processor, "xxx", max_tokens=9, min_tokens=3, stop_token_ids={ord("x")})
    assert [output.finish_reason for output in outputs] == [None, None, FinishReason.STOP]
    assert outputs[-1].stop_reason == ord("x")
    assert outputs[-1].text == ""


@pytest.mark.parametrize(
    ("error", "reason", "words"),
    [
        (GrammarError("it cannot go on"), FinishReason.REFUSED, "it cannot go on"),
        (RuntimeError("internal"), FinishReason.ERROR, "failed to process"),
    ],
)
def test_a_grammar_that_cannot_go_on_is_the_clients_and_any_other_fault_is_ours(
    processor, error, reason, words
):
    """Either ends the request with a sentence, and nothing is raised."""
    request = make_request([1], max_tokens=9)
    request.grammar = Broken(error)
    processor.add(request)
    output = processor.process(request, ord("a"), None)
    assert output.finish_reason is reason
    assert words in output.error
