"""server.engine.loaded_engine: an engine built from a configuration, with the facts about it."""

from __future__ import annotations

import pytest
from engines import load_engine, make_request, run

from server.errors import ConfigurationError


def test_the_facts_are_the_checkpoints(checkpoint):
    """Vocabulary, context and layers are what the model's files say, as far as they fit."""
    path = checkpoint("rand-llama-untied")
    loaded = load_engine(path, max_model_len=48)
    assert loaded.info.max_model_len == 48
    assert loaded.info.vocab_size == loaded.engine._runner._executor.vocab_size
    assert loaded.info.num_layers == len(loaded.info.cost.windows)
    assert loaded.info.architecture == "llama"
    assert loaded.info.model_name == path.name


def test_warming_up_leaves_no_trace(checkpoint):
    """Before the first request nothing runs, no block is held and no beginning is remembered."""
    loaded = load_engine(checkpoint("rand-llama-untied"))
    manager = loaded.engine.scheduler.manager
    assert not loaded.engine.has_work
    assert manager.usage == 0
    (result,) = run(loaded.engine, [make_request([0, 0] * 20)])
    assert result.last.num_cached_tokens == 0


def test_a_cache_too_small_for_the_context_is_refused_by_its_options(checkpoint):
    """The error names what to change."""
    with pytest.raises(ConfigurationError, match="--kv-cache-memory to at least"):
        load_engine(checkpoint("rand-llama-untied"), kv_cache_memory=1024)
