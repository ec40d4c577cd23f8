"""ApiKeys: who may use the server. Knows the digests of keys, and nothing of HTTP."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from server.config import ServerConfig
from server.errors import ConfigurationError


class ApiKeys:
    """A set of keys that can be asked about; none at all means that everybody may come in.

    Args:
        keys: As the clients send them.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    @classmethod
    def from_config(cls, config: ServerConfig) -> ApiKeys:
        """The keys of the option, or the environment, and of the file, one on each line.

        Raises:
            ConfigurationError: The file cannot be read, or a key was announced and none is there.
        """
        keys: list[str] = []
        if config.api_key is not None:
            keys += _checked(config.api_key.get_secret_value().split(","), "--api-key")
        if config.api_key_file is not None:
            keys += _checked(_lines(config.api_key_file), f"--api-key-file {config.api_key_file}")
        return cls(keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def accept(self, given: bytes) -> bool:
        """Whether this is a key; takes as long whichever it is and however much of it is right."""
        digest = _digest(given)
        # Every key is compared: stopping at the right one would tell which it was.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


def _digest(key: bytes) -> bytes:
    """All of one length, so that comparing them does not tell a key's."""
    return hashlib.sha256(key).digest()


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ConfigurationError(f"--api-key-file: cannot read {path}: {reason}.") from error
    return [line for line in lines if not line.lstrip().startswith("#")]


def _checked(keys: Iterable[str], source: str) -> list[str]:
    """The keys without blanks.

    An empty variable must not open a server that was meant to be closed.
    """
    found = [key.strip() for key in keys if key.strip()]
    if not found:
        raise ConfigurationError(f"{source}: holds no key. Give one, or leave the option out.")
    return found
