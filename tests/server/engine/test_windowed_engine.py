"""Serving with a window: the paper's numbers, equal bits in any company, and memory that stays."""

from __future__ import annotations

import pytest
import torch
from checkpoints import reference
from engines import load_engine, make_request, run
from streaming_reference import StreamingReference

from server.config import EngineConfig
from server.engine.loaded_engine import LoadedEngine
from server.errors import ConfigurationError
from server.tools.verify.verify import Verification

WINDOW = {"attention_window": 64, "attention_sinks": 16}
CAPACITY = 80


def text(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(0, 256, (length,), generator=generator).tolist()


def logprobs(loaded: LoadedEngine, token_ids: list[int]) -> torch.Tensor:
    """What the engine says at every position, in its own chunks."""
    slices = [logits for _, logits in loaded.engine.text_logits(token_ids)]
    return torch.cat(slices).log_softmax(-1)


@pytest.mark.parametrize("kernels", ["auto", "off"])
@pytest.mark.parametrize("sinks", [0, 16])
def test_every_position_is_as_in_the_paper(checkpoint, kernels: str, sinks: int):
    """Beyond the context, too, log-probabilities are those of a streaming cache of transformers."""
    path = checkpoint("rand-llama-untied")
    options = WINDOW | {"attention_sinks": sinks}
    loaded = load_engine(path, dtype="float32", kernels=kernels, max_model_len=1024, **options)
    token_ids = text(600)  # the context is 512
    theirs = StreamingReference(reference(path), size=64, sinks=sinks, stride=16)
    ours = logprobs(loaded, token_ids)
    torch.testing.assert_close(ours, theirs.logprobs(token_ids), atol=2e-3, rtol=0)
    loaded.engine.scheduler.manager.check_integrity()


def test_a_text_that_fits_is_read_as_without_a_window(checkpoint):
    """Nothing is dropped before the window is full: not a bit differs."""
    path = checkpoint("rand-llama-untied")
    whole, windowed = load_engine(path), load_engine(path, **WINDOW)
    token_ids = text(CAPACITY)
    assert torch.equal(logprobs(whole, token_ids), logprobs(windowed, token_ids))


def test_learned_positions_end_with_the_context(checkpoint):
    """A gpt2 is bounded as well, but its positions run out; its sinks keep theirs."""
    loaded = load_engine(checkpoint("rand-gpt2"), **WINDOW)
    (result,) = run(loaded.engine, [make_request(text(100), max_tokens=20, ignore_eos=True)])
    assert len(result.token_ids) == 20
    with pytest.raises(ValueError, match="make 133, but at most 128 tokens fit"):
        loaded.engine.add(make_request(text(125), max_tokens=8))


def test_answers_are_the_same_to_the_bit(checkpoint):
    """Alone, cached or not, chunked, preempted, in a crowd, on two threads: one answer."""
    config = EngineConfig(
        model=str(checkpoint("rand-llama-untied")), threads=2, max_model_len=512, **WINDOW
    )
    verification = Verification(config)
    if verification.info.kernels == "torch":
        pytest.skip("the contract is the native kernels'")
    results = list(verification.run())
    assert [str(d) for result in results for d in result.differences] == []
    assert any("preemption" in r.group and not r.note.startswith("0") for r in results)


def test_memory_stays_as_the_text_grows(checkpoint):
    """A request of many contexts holds no more blocks than its window and sinks, at any step."""
    loaded = load_engine(checkpoint("rand-llama-untied"), **WINDOW, max_model_len=4096)
    engine, manager = loaded.engine, loaded.engine.scheduler.manager
    request = make_request(text(1500), max_tokens=100, ignore_eos=True)
    engine.add(request)
    held = []
    while engine.has_work:
        engine.step()
        if request.region is not None:
            held.append(len(request.region.block_ids))
            assert request.region.num_dropped_tokens <= len(request.token_ids) - 48
    assert max(held) == CAPACITY // 16
    assert len(request.token_ids) == 1600
    manager.check_integrity()
    assert manager.usage == 0


def test_the_next_turn_of_a_chat_finds_its_beginning_cached(checkpoint):
    """What was read before the first slide is shared; the rest is computed again, and equal."""
    loaded = load_engine(checkpoint("rand-llama-untied"), **WINDOW, max_model_len=1024)
    prompt = text(200)
    first, second = (run(loaded.engine, [make_request(prompt, logprobs=3)])[0] for _ in range(2))
    assert second.last.num_cached_tokens == 64  # all but the block of the last token before it
    assert first.token_ids == second.token_ids
    assert first.logprobs == second.logprobs


def test_a_cache_that_holds_one_window_serves_requests_in_turn(checkpoint):
    """Requests far longer than the whole pool end, one giving way to the other."""
    path = checkpoint("rand-llama-untied")
    bytes_per_token = load_engine(path).info.cost.cache_bytes_per_token
    loaded = load_engine(
        path, **WINDOW, max_model_len=1024, kv_cache_memory=(CAPACITY + 32) * bytes_per_token
    )
    together = run(loaded.engine, [make_request(text(n), max_tokens=40) for n in (300, 310)])
    apart = [run(loaded.engine, [make_request(text(n), max_tokens=40)])[0] for n in (300, 310)]
    assert [r.token_ids for r in together] == [r.token_ids for r in apart]
    loaded.engine.scheduler.manager.check_integrity()


def test_a_window_that_does_not_fit_is_refused(checkpoint):
    """The message says how much cache one request needs."""
    with pytest.raises(ConfigurationError, match="one request of 80 tokens needs"):
        load_engine(checkpoint("rand-llama-untied"), **WINDOW, kv_cache_memory=16 * 1024)
