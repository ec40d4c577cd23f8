"""server.commands.log_lines: messages reach whatever stderr is by then."""

import io
import logging
import sys

import pytest

from server.commands.log_lines import LogLines, for_this_terminal
from server.config import ServerConfig


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("x", logging.WARNING, "x.py", 1, text, (), None)


def test_lines_go_to_the_stderr_of_the_moment(monkeypatch):
    """A progress bar that took its place sees them, and what was there before does not."""
    before, bar = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", before)
    lines = LogLines()
    monkeypatch.setattr(sys, "stderr", bar)
    lines.handle(record("slow disk"))
    assert (before.getvalue(), bar.getvalue()) == ("", "slow disk\n")


def test_a_stderr_that_is_gone_is_no_reason_to_fail(monkeypatch):
    """Nothing is raised and nothing is printed."""
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    LogLines().handle(record("nobody reads this"))


@pytest.mark.parametrize(
    ("is_terminal", "chosen", "resolved"),
    [
        (True, {}, (False, "warning")),
        (False, {}, (True, "info")),
        (True, {"access_log": True, "log_level": "debug"}, (True, "debug")),
        (False, {"access_log": "auto", "log_level": "auto"}, (True, "info")),
    ],
)
def test_a_terminal_is_told_little_unless_it_asks(monkeypatch, is_terminal, chosen, resolved):
    """What is not chosen depends on who reads it."""
    for name in ("stdout", "stderr"):
        stream = io.StringIO()
        stream.isatty = lambda: is_terminal
        monkeypatch.setattr(sys, name, stream)
    config = for_this_terminal(ServerConfig(**chosen))
    assert (config.access_log, config.log_level) == resolved
