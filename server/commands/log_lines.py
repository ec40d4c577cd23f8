"""LogLines: messages as lines on stderr, whatever stderr is when they come, and what is logged.

A progress bar puts itself in the place of stderr while it is shown; a handler that kept the one
from before would write into its line.
"""

from __future__ import annotations

import logging
import sys
from typing import TypeVar

from server.config import ServerConfig

_FORMAT = "%(levelname)-8s %(message)s"
AnyServerConfig = TypeVar("AnyServerConfig", bound=ServerConfig)


class LogLines(logging.Handler):
    """Writes each record as a line."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one; a stderr that is gone takes nothing and is no reason to fail."""
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except (OSError, ValueError):
            return


def log_to_stderr(level: str) -> None:
    """Log messages from this level on.

    Args:
        level: A name such as "warning".
    """
    lines = LogLines()
    lines.setFormatter(logging.Formatter(_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[lines])


def for_this_terminal(config: AnyServerConfig) -> AnyServerConfig:
    """What "auto" comes to here: a person at a terminal is told little, a machine everything."""
    access_log, log_level = config.access_log, config.log_level
    if access_log is None:
        access_log = not sys.stdout.isatty()
    if log_level is None:
        log_level = "warning" if sys.stderr.isatty() else "info"
    return config.model_copy(update={"access_log": access_log, "log_level": log_level})
