"""server.plural: singular and plural."""

import pytest

from server.plural import counted


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "0 threads"), (1, "1 thread"), (2, "2 threads"), (2048, "2,048 threads")],
)
def test_one_is_singular_and_all_else_plural(number, words):
    """Only one thread is a thread."""
    assert counted(number, "thread") == words
