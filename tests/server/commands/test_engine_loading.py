"""server.commands.engine_loading: what is seen while a model loads."""

import pytest
from rich.progress import Progress

from server.commands.engine_loading import BytesDone


@pytest.mark.parametrize(("total", "shown"), [(None, ""), (2_000_000, "1.0/2.0 MB")])
def test_bytes_are_shown_once_they_are_known(total, shown):
    """Before that there is nothing, and no question mark."""
    progress = Progress(disable=True)
    task = progress.add_task("loading", total=total, completed=1_000_000)
    assert BytesDone().render(progress.tasks[task]).plain == shown
