"""server.engine.prefix_store: what one run has computed, the next one finds, or leaves alone."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from engines import load_engine, make_request, run

from server.config import ServerConfig
from server.engine.loaded_engine import LoadedEngine
from server.engine.prefix_store import keep_prefixes

PROMPT = [int(i * 37 % 250) for i in range(100)]


@pytest.fixture
def path(checkpoint) -> Path:
    """A small model."""
    return checkpoint("rand-llama-untied")


def start(path: Path, folder: Path, **options: object) -> LoadedEngine:
    config = ServerConfig(prefix_store=folder, **options)
    sizes = {"block_size": options["block_size"]} if "block_size" in options else {}
    return keep_prefixes(load_engine(path, **sizes), config)


def ask(loaded: LoadedEngine, **params: object):
    (result,) = run(loaded.engine, [make_request(PROMPT, logprobs=2, **params)])
    return result


def test_the_next_run_finds_what_was_computed(path, tmp_path):
    """After a restart a known prompt is found to its last whole block, and answered alike."""
    first = start(path, tmp_path)
    cold = ask(first)
    salted = ask(first, cache_salt="mine")
    assert cold.last.num_cached_tokens == 0
    first.on_stop()
    second = start(path, tmp_path)
    second.engine.scheduler.manager.check_integrity()
    warm = ask(second)
    assert warm.last.num_cached_tokens == 96
    assert warm.token_ids == cold.token_ids
    assert warm.logprobs == cold.logprobs
    assert ask(second, cache_salt="mine").last.num_cached_tokens == 96
    assert ask(second, cache_salt="mine").logprobs == salted.logprobs
    assert ask(second, cache_salt="other").last.num_cached_tokens == 0
    second.engine.scheduler.manager.check_integrity()


def test_a_third_run_finds_it_too(path, tmp_path):
    """What was read and not used is kept again."""
    first = start(path, tmp_path)
    ask(first)
    first.on_stop()
    start(path, tmp_path).on_stop()
    assert ask(start(path, tmp_path)).last.num_cached_tokens == 96


def test_only_the_last_used_are_kept_within_the_limit(path, tmp_path):
    """Of more than may be kept, the beginning of what was used last remains findable."""
    loaded = start(path, tmp_path)
    block = loaded.pool.storage[:, :, 0].nbytes
    loaded = start(path, tmp_path, prefix_store_memory=3 * block)
    ask(loaded)
    loaded.on_stop()
    (file,) = tmp_path.iterdir()
    assert 3 * block < file.stat().st_size < 4 * block
    assert ask(start(path, tmp_path)).last.num_cached_tokens == 48


def test_a_smaller_cache_takes_what_fits(path, tmp_path):
    """Blocks beyond the new cache's room are left out, the least recently used first."""
    config = ServerConfig(prefix_store=tmp_path)
    first = keep_prefixes(load_engine(path, max_model_len=512), config)
    prompts = [[(i * step) % 250 for i in range(400)] for step in (3, 7, 11)]
    for prompt in prompts:
        run(first.engine, [make_request(prompt)])
    first.on_stop()
    room = first.pool.storage[:, :, 0].nbytes * 40
    small = load_engine(path, max_model_len=512, kv_cache_memory=room)
    manager = keep_prefixes(small, config).engine.scheduler.manager
    manager.check_integrity()
    assert manager.num_blocks < 75
    assert [manager.num_matching_tokens(prompt) for prompt in prompts][::2] == [0, 384]


@pytest.mark.parametrize("damage", ["flip", "cut", "long", "empty", "text", "header"])
def test_a_damaged_file_is_left_alone(path, tmp_path, damage, caplog):
    """Whatever became of the file, the engine starts cold, says so once, and writes it anew."""
    first = start(path, tmp_path)
    ask(first)
    first.on_stop()
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    middle = len(data) // 2
    file.write_bytes(
        {
            "flip": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
            "cut": data[:middle],
            "long": data + b"x",
            "empty": b"",
            "text": b"hello\n" * 9999,
            "header": data.replace(b'"num_blocks": ', b'"num_blocks": 9', 1),
        }[damage]
    )
    with caplog.at_level(logging.WARNING):
        second = start(path, tmp_path)
    assert len([each for each in caplog.records if "is ignored" in each.message]) == 1
    assert ask(second).last.num_cached_tokens == 0
    second.on_stop()
    assert ask(start(path, tmp_path)).last.num_cached_tokens == 96


def test_another_model_or_form_is_not_read(checkpoint, path, tmp_path):
    """Blocks of other weights, or of another size, are nobody else's."""
    first = start(path, tmp_path)
    ask(first)
    first.on_stop()
    other = start(checkpoint("rand-llama-tied"), tmp_path)
    assert other.engine.scheduler.manager.num_matching_tokens(PROMPT) == 0
    larger = start(path, tmp_path, block_size=32)
    assert larger.engine.scheduler.manager.num_matching_tokens(PROMPT) == 0


def test_only_its_owner_can_read_it(path, tmp_path):
    """The file holds what users have said."""
    first = start(path, tmp_path / "deep" / "down")
    ask(first)
    first.on_stop()
    (file,) = (tmp_path / "deep" / "down").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_folder_that_cannot_be_written_is_no_fault(path, tmp_path, caplog):
    """The server ends well, with one line about it."""
    (tmp_path / "file").write_text("in the way")
    first = start(path, tmp_path / "file")
    ask(first)
    first.on_stop()
    assert sum("cannot write" in each.message for each in caplog.records) == 1
