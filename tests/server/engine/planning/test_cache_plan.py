"""The memory of the cache is divided as told, and what does not fit says what to change."""

import pytest

from server.engine.planning.cache_plan import CachePlan, format_bytes, plan_cache
from server.errors import ConfigurationError


def plan(**changes) -> CachePlan:
    arguments = {
        "weights_bytes": 1000,
        "bytes_per_token": 10,
        "memory": None,
        "available": 100_000,
        "block_size": 16,
        "context": 128,
        "max_model_len": None,
        "max_num_seqs": 4,
    }
    return plan_cache(**(arguments | changes))


def test_auto_takes_no_more_than_can_be_used():
    """With plenty of memory the cache holds max_num_seqs requests of full length."""
    assert (plan().num_blocks, plan().num_full_requests, plan().max_model_len) == (32, 4, 128)


def test_auto_takes_a_share_of_little_memory():
    """With little memory the cache takes a share of it."""
    assert plan(available=5000).num_tokens == 18 * 16


def test_auto_length_is_cut_to_what_fits():
    """A context that does not fit is cut when no length was asked for."""
    assert plan(memory=800).max_model_len == 80


def test_told_memory_is_used_whole():
    """A stated number of bytes becomes that many whole blocks."""
    result = plan(memory=3200 + 159)
    assert (result.num_blocks, result.cache_bytes, result.num_full_requests) == (20, 3200, 2)


def test_length_that_does_not_fit_says_what_to_change():
    """A stated length that does not fit names both ways out, and they work."""
    with pytest.raises(ConfigurationError) as caught:
        plan(memory=800, max_model_len=100)
    assert "--kv-cache-memory to at least 1120, or --max-model-len to 80" in str(caught.value)
    assert plan(memory=1120, max_model_len=100).num_full_requests == 1
    assert plan(memory=800, max_model_len=80).num_full_requests == 1


def test_memory_for_less_than_one_block():
    """Memory that holds not even one block is refused with the least that works."""
    with pytest.raises(ConfigurationError, match=r"memory to at least 160, .* or to 1280$"):
        plan(memory=100)


def test_length_beyond_the_context_is_refused():
    """No more is served than the model was made for."""
    with pytest.raises(ConfigurationError, match=r"--max-model-len is 129.*context is 128"):
        plan(max_model_len=129)


def test_description_names_every_figure():
    """The log line says what weights, cache and one token take and how many requests fit."""
    assert plan().describe() == (
        "memory plan: weights 1000 bytes, cache 5 KiB = 512 tokens of 10 bytes in blocks of 16, "
        "room for 4 requests of 128 tokens (at most 4 run at once)"
    )


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (23 * 2**40, "23 TiB")],
)
def test_format_bytes(size, text):
    """Sizes are given in the largest unit that keeps them above one."""
    assert format_bytes(size) == text


def test_what_there_is_and_the_least_are_said():
    """Less than a block is said as it was given, with the least that works, which works."""
    with pytest.raises(ConfigurationError) as caught:
        plan(memory=100)
    assert "there are 100 bytes: set --kv-cache-memory to at least 160," in str(caught.value)
    assert plan(memory=160).max_model_len == 16
