"""The engine's own promises hold on the interpreted GPU path, token by token."""

from __future__ import annotations

import pytest
from cuda_on_cpu import cuda_executor
from engines import load_engine, make_request, run
from fake_capture import FakeCapture

from model.executors.choice import ExecutorFactory

PROMPT = [(7 * i + i * i) % 250 for i in range(37)]


@pytest.fixture
def engine_with(checkpoint, monkeypatch):
    """Makes an engine on the GPU's executor with some options."""

    def make(self, limits):
        return cuda_executor(self._loaded.model, limits=limits, capture=FakeCapture())

    monkeypatch.setattr(ExecutorFactory, "make", make)

    def load(**options):
        small = {"max_num_seqs": 2, "max_num_batched_tokens": 48, "max_model_len": 64}
        path = checkpoint("rand-mistral")
        return load_engine(path, device="cpu", kernels="off", **small | options).engine

    return load


def answer(engine, prompt: list[int]) -> list[int]:
    request = make_request(prompt, max_tokens=4, ignore_eos=True)
    return run(engine, [request])[0].token_ids


def test_chunked_equals_whole(engine_with):
    """A prompt read in pieces gets the tokens of one read at once."""
    assert answer(engine_with(max_num_batched_tokens=10), PROMPT) == answer(engine_with(), PROMPT)


def test_cached_prefix_equals_recomputed(engine_with):
    """A prompt whose beginning is cached gets the tokens of one that is computed whole."""
    engine = engine_with()
    first = answer(engine, PROMPT)
    request = make_request(PROMPT, max_tokens=4, ignore_eos=True)
    assert run(engine, [request])[0].token_ids == first
    assert request.num_cached_tokens == 32


def test_preempted_equals_undisturbed(engine_with):
    """Who loses its blocks for want of memory gets the same tokens in the end."""
    engine = engine_with(kv_cache_memory=4 * 16 * 2 * 3 * 2 * 16 * 4, max_model_len=48)
    prompts = [PROMPT[:15], PROMPT[15:30]]
    requests = [make_request(one, max_tokens=20, ignore_eos=True) for one in prompts]
    found = [result.token_ids for result in run(engine, requests)]
    assert sum(request.num_preemptions for request in requests) > 0
    undisturbed = engine_with()
    alone = [make_request(one, max_tokens=20, ignore_eos=True) for one in prompts]
    assert found == [run(undisturbed, [one])[0].token_ids for one in alone]
