"""model.native_calls: what is bound to memory runs whatever the memory holds."""

from __future__ import annotations

import pytest
import torch
from checkpoints import RANDOM_CONFIGS, random_model
from hf_reference import ours_from
from native_models import native_from
from paged import PagedCache
from torch import Tensor

from cache.view import CacheView
from model.native import NativeTransformer
from model.native_calls import BoundPass
from model.native_library import NativeKernels, NativeUnavailableError
from model.pass_context import PassContext, PassTensors

TOKENS = 5
Memory = tuple[Tensor, Tensor, CacheView]


@pytest.fixture(scope="module")
def model() -> NativeTransformer:
    try:
        kernels = NativeKernels("portable", threads=1)
    except NativeUnavailableError as error:
        pytest.skip(str(error))
    return native_from(ours_from(random_model(RANDOM_CONFIGS["rand-llama-tied"])), kernels=kernels)


@pytest.fixture
def memory(model: NativeTransformer) -> Memory:
    """Token ids, positions and the cache of a batch."""
    view, positions = PagedCache.for_model(model).view({"a": TOKENS})
    return torch.zeros(TOKENS, dtype=torch.int64), positions, view


def bind(model: NativeTransformer, memory: Memory, *, out: Tensor) -> BoundPass:
    ids, positions, view = memory
    return model.bind(PassTensors(ids, positions, view.layout), pool=view.pool, out=out)


def hidden_states(model: NativeTransformer, memory: Memory) -> Tensor:
    ids, positions, view = memory
    return model.hidden_states(ids, PassContext(positions, view))


def test_each_run_reads_the_memory_anew(model, memory):
    """Hidden states and logits are those of the tokens that stand there now."""
    hidden = torch.empty(TOKENS, model.config.hidden_size)
    logits = torch.empty(TOKENS, model.config.vocab_size)
    run, finish = bind(model, memory, out=hidden), model.bind_logits(hidden, out=logits)
    for first in (1, 7):
        memory[0].copy_(torch.arange(first, first + TOKENS))
        assert run() is hidden
        assert finish() is logits
        assert torch.equal(hidden, hidden_states(model, memory))
        assert torch.equal(logits, model(*memory))


def test_a_batch_out_of_bounds_is_refused_and_the_next_one_runs(model, memory):
    """An error says what is wrong with this batch, and is not remembered."""
    run = bind(model, memory, out=torch.empty(TOKENS, model.config.hidden_size))
    memory[0].fill_(-1)
    with pytest.raises(ValueError, match="input id"):
        run()
    memory[0].fill_(3)
    assert torch.equal(run(), hidden_states(model, memory))


def test_memory_lives_as_long_as_what_is_bound_to_it(model):
    """Nobody else has to keep it."""
    ids = torch.arange(TOKENS)
    view, positions = PagedCache.for_model(model).view({"a": TOKENS})
    expected = hidden_states(model, (ids, positions, view))
    view, positions = PagedCache.for_model(model).view({"a": TOKENS})
    run = bind(model, (ids, positions, view), out=torch.empty_like(expected))
    del ids, positions, view
    spoilt = [torch.full((TOKENS,), -1) for _ in range(100)]
    assert torch.equal(run(), expected)
    del spoilt
