"""server.engine.sampling.native_chooser: one call of the kernels a step, over memory that stays."""

from __future__ import annotations

import pytest
import torch
from engines import load_engine, make_request

from model.native_library import NativeKernels, NativeUnavailableError
from model.native_sampling import NativeSampling
from server.engine.sampling.logprobs import NOT_FINITE
from server.engine.sampling.native_chooser import NativeChooser
from server.engine.sampling.torch_chooser import TorchChooser

VOCAB_SIZE = 300


@pytest.fixture(scope="module")
def kernels() -> NativeKernels:
    """The plainest kernels, which every processor can run."""
    try:
        return NativeKernels("portable", threads=1)
    except NativeUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def num_bound(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each binding of the kernels has had."""
    rows: list[int] = []
    bind = NativeSampling.bind

    def counted(self, logits, choices):
        rows.append(len(choices))
        return bind(self, logits, choices)

    monkeypatch.setattr(NativeSampling, "bind", counted)
    return rows


def logits_of(rows: int) -> torch.Tensor:
    return torch.randn(rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(1))


def test_logits_that_stay_are_bound_once(kernels, num_bound):
    """New values in the same memory are chosen from without a new binding."""
    chooser, logits = NativeChooser(kernels, VOCAB_SIZE), logits_of(2)
    chooser.begin([make_request([1]), make_request([2])], {})
    for _ in range(3):
        assert chooser.choose(logits, allowed=None) == (logits.argmax(-1).tolist(), {})
        logits.copy_(logits.roll(7, dims=1))
    assert num_bound == [2]


def test_other_logits_are_bound_anew(kernels, num_bound):
    """Nothing is chosen from memory that is no longer the step's."""
    chooser, first, second = NativeChooser(kernels, VOCAB_SIZE), logits_of(1), -logits_of(1)
    chooser.begin([make_request([1])], {})
    for logits in (first, second):
        assert chooser.choose(logits, allowed=None)[0] == logits.argmax(-1).tolist()
    assert num_bound == [1, 1]


def test_an_engine_binds_no_step_anew(checkpoint, num_bound):
    """Steps of one batch share a binding until another block of the cache is needed."""
    engine = load_engine(checkpoint("rand-llama-untied"), block_size=16).engine
    if not isinstance(engine._sampler._chooser, NativeChooser):
        pytest.skip("there are no native kernels here")
    num_bound.clear()
    engine.generate([make_request([1, 2, 3], max_tokens=40, ignore_eos=True)])
    assert 0 < len(num_bound) <= 1 + -(-43 // 16)


def test_a_row_that_is_not_finite_fails_alone(kernels):
    """Its reason is named, and the others get their tokens."""
    chooser, logits = NativeChooser(kernels, VOCAB_SIZE), logits_of(3)
    expected = logits.argmax(-1).tolist()
    logits[1, 5] = torch.nan
    chooser.begin([make_request([row]) for row in range(3)], {})
    tokens, failed = chooser.choose(logits, allowed=None)
    assert failed == {1: NOT_FINITE}
    assert (tokens[0], tokens[2]) == (expected[0], expected[2])


def test_scores_are_those_of_torch(kernels):
    """Log-probabilities and their order agree with torch's at every alternative."""
    logits, rows, token_ids, num_top = logits_of(4), [0, 2], [17, 255], [3, 5]
    scored = [
        chooser.score(logits, token_ids, rows=rows, num_top=num_top)
        for chooser in (NativeChooser(kernels, VOCAB_SIZE), TorchChooser())
    ]
    for ours, theirs in zip(*scored, strict=True):
        assert ours.token_id == theirs.token_id
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-5)
        assert [id_ for id_, _ in ours.top] == [id_ for id_, _ in theirs.top]
        assert [value for _, value in ours.top] == pytest.approx(
            [value for _, value in theirs.top], abs=1e-5
        )
