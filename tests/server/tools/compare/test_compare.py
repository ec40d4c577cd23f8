"""The comparison runs the engine as described: the same tokens twice, every step timed."""

import pytest
from engines import load_engine, make_request, run

from server.errors import ConfigurationError
from server.tools.compare.compare import CacheComparison, ladder, sparse_lengths

PROMPT = list(b"The cache")


@pytest.mark.parametrize("name", ["rand-llama-untied", "rand-gemma3"])
def test_both_runs_choose_what_the_engine_serves(checkpoint, name):
    """The tokens of both runs are those of an ordinary greedy request."""
    path = checkpoint(name)
    measured = CacheComparison(load_engine(path), PROMPT).run([16, 40], whole=20)
    served = run(load_engine(path).engine, [make_request(PROMPT, max_tokens=32, ignore_eos=True)])
    assert measured.cached.token_ids == served[0].token_ids
    assert measured.first_difference is None
    assert measured.cached.lengths == list(range(9, 41))
    assert measured.uncached.lengths == [*range(9, 22), 30, 40]
    assert all(seconds > 0 for seconds in measured.uncached.seconds)


def test_long_sequences_are_computed_in_chunks(checkpoint):
    """A step that needs several passes counts as one."""
    loaded = load_engine(checkpoint("rand-llama-tied"), max_num_batched_tokens=7)
    measured = CacheComparison(loaded, PROMPT).run([30], whole=30)
    assert measured.cached.lengths == measured.uncached.lengths == list(range(9, 31))
    assert measured.first_difference is None


def test_progress_is_told(checkpoint):
    """Each step is told of, with where it will end."""
    told = []
    loaded = load_engine(checkpoint("rand-llama-tied"))
    CacheComparison(loaded, PROMPT, progress=lambda *step: told.append(step)).run([16], whole=12)
    assert len(told) == 8 + 4 + 2
    assert told[-1][1:] == (1, 2)


def test_prompts_leave_room(checkpoint):
    """A prompt as long as the shortest length is refused by name."""
    loaded = load_engine(checkpoint("rand-llama-tied"))
    with pytest.raises(ConfigurationError, match=r"9 tokens; expected fewer than .* 9"):
        CacheComparison(loaded, PROMPT).run([9], whole=9)


def test_ladder_doubles_up_to_its_end():
    """Lengths double from 64, and the longest is always there."""
    assert ladder(4096) == [64, 128, 256, 512, 1024, 2048, 4096]
    assert ladder(300) == [64, 128, 256, 300]
    assert ladder(64) == [64]


def test_sparse_lengths_begin_where_whole_runs_end():
    """Samples lie beyond the whole run, begin right behind it, and hold every length."""
    assert sparse_lengths([64, 128, 256], whole=100) == [101, 128, 192, 256]
    assert sparse_lengths([64, 128], whole=128) == []
