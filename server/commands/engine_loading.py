"""loading: an engine that shows a progress bar while it loads its model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, Task, TextColumn
from rich.text import Text

from server.api.protocols import EngineClient
from server.config import EngineConfig, ServerConfig


class BytesDone(DownloadColumn):
    """Bytes of all bytes, once it is known how many there are."""

    def render(self, task: Task) -> Text:
        """Nothing, rather than a question mark."""
        return Text() if task.total is None else super().render(task)


@contextmanager
def loading(config: EngineConfig) -> Iterator[EngineClient]:
    """Make an engine that will load this model, with a progress bar, when it is started.

    The bar is there on a terminal only, and what is printed to stderr meanwhile stands above it.
    """
    from server.engine.async_engine import AsyncEngine  # noqa: PLC0415 - torch takes seconds to import
    from server.engine.loaded_engine import LoadedEngine, build_engine  # noqa: PLC0415 - and a wrong option needs none of it
    from server.engine.prefix_store import keep_prefixes  # noqa: PLC0415 - the same

    columns = (TextColumn("{task.description}"), BarColumn(), BytesDone())
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("loading the model", total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)
            if done >= total:
                bar.stop()

        def build() -> LoadedEngine:
            loaded = build_engine(config, progress=show)
            return keep_prefixes(loaded, config) if isinstance(config, ServerConfig) else loaded

        yield AsyncEngine(build)
