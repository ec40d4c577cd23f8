"""server.config: options from the command line and the environment."""

from __future__ import annotations

import pytest

from server.config import EngineConfig, ServerConfig, configure, parse_bytes
from server.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1000", 1000),
        ("2GiB", 2 << 30),
        ("2GB", 2_000_000_000),
        ("1.5g", 3 << 29),
        ("512 MiB", 512 << 20),
        ("auto", None),
    ],
)
def test_bytes_are_read_with_their_unit(text, number):
    """GiB and g are powers of 1024, GB of 1000."""
    assert parse_bytes(text) == number


def test_options_win_over_the_environment(monkeypatch):
    """KVSERVE_* fills what the command line leaves open."""
    monkeypatch.setenv("KVSERVE_PORT", "1234")
    monkeypatch.setenv("KVSERVE_KV_CACHE_MEMORY", "1GiB")
    monkeypatch.setenv("KVSERVE_THREADS", "auto")
    config = configure(ServerConfig, {"max_num_seqs": "4", "host": None})
    assert (config.port, config.max_num_seqs, config.host) == (1234, 4, "127.0.0.1")
    assert config.kv_cache_memory == 1 << 30
    assert config.threads is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"port": "70000"}, "--port: .*65535.*got 70000"),
        ({"dtype": "float16"}, "--dtype: .*bfloat16.*got float16"),
        ({"block_size": "24"}, "--block-size: must be a power of two .got 24"),
        ({"block_size": "many"}, "--block-size: .*integer.*got many"),
        ({"kv_cache_memory": "lots"}, "--kv-cache-memory: must be a number of bytes"),
        ({"threads": "0"}, "--threads: .*greater than 0"),
        ({"grace": "inf"}, "--grace: .*finite"),
    ],
)
def test_a_wrong_option_is_named_with_bound_and_value(options, words):
    """One line is enough to mend the command."""
    with pytest.raises(ConfigurationError, match=words) as error:
        configure(ServerConfig, options)
    assert "\n" not in str(error.value)


def test_a_wrong_variable_is_named_as_one(monkeypatch):
    """The user looks where the value came from."""
    monkeypatch.setenv("KVSERVE_DEVICE", "tpu")
    with pytest.raises(ConfigurationError, match=r"KVSERVE_DEVICE: .*got tpu"):
        configure(EngineConfig, {})


def test_a_configuration_is_frozen():
    """Nobody overwrites an option behind another's back."""
    with pytest.raises(ValueError, match="frozen"):
        EngineConfig().model = "other"
