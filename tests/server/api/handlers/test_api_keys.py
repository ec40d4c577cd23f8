"""server.api.handlers.api_keys: where keys come from, and which are accepted."""

from __future__ import annotations

import pytest

from server.api.handlers.api_keys import ApiKeys
from server.config import ServerConfig, configure
from server.errors import ConfigurationError


def test_keys_come_from_the_option_and_the_file_together(tmp_path):
    """Commas and lines separate keys; blanks, empty lines and comments are none."""
    path = tmp_path / "keys"
    path.write_text("# of the office\n\n  third \nfour,th\n")
    keys = ApiKeys.from_config(ServerConfig(api_key=" first,second ,", api_key_file=path))
    assert all(map(keys.accept, (b"first", b"second", b"third", b"four,th")))
    for wrong in (b"", b"# of the office", b"fourth", b"FIRST", b"first,second", b"first\0"):
        assert not keys.accept(wrong)


def test_keys_come_from_the_environment(monkeypatch):
    """A container gets its key as a variable."""
    monkeypatch.setenv("KVSERVE_API_KEY", "hidden")
    config = configure(ServerConfig, {})
    assert ApiKeys.from_config(config).accept(b"hidden")
    assert "hidden" not in repr(config)


def test_without_keys_there_is_nothing_to_ask():
    """No key configured is an open server."""
    assert not ApiKeys.from_config(ServerConfig())


@pytest.mark.parametrize("value", ["", " ", ",", " , "])
def test_an_empty_key_does_not_open_the_server(value):
    """A variable that was meant to hold a key and is empty stops the start."""
    with pytest.raises(ConfigurationError, match="--api-key: holds no key"):
        ApiKeys.from_config(ServerConfig(api_key=value))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (None, "cannot read .*: No such file"),
        (b"", "holds no key"),
        (b"# nothing\n", "holds no key"),
        (b"\xff\xfe\x00", "it is not text"),
    ],
)
def test_a_file_without_keys_is_said_at_the_start(tmp_path, content, match):
    """The message names the option, the file and what is wrong with it."""
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"--api-key-file.*{match}"):
        ApiKeys.from_config(ServerConfig(api_key_file=path))
