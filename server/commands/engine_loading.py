"""loading: an engine that shows a progress bar while it loads its model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from server.api.protocols import EngineClient
from server.config import EngineConfig, ServerConfig


@contextmanager
def loading(config: EngineConfig) -> Iterator[EngineClient]:
    """Make an engine that will load this model, with a progress bar, when it is started."""
    from server.engine.async_engine import AsyncEngine  # noqa: PLC0415 - torch takes seconds to import
    from server.engine.loaded_engine import LoadedEngine, build_engine  # noqa: PLC0415 - and a wrong option needs none of it
    from server.engine.prefix_store import keep_prefixes  # noqa: PLC0415 - the same

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("loading the model", total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)
            if done >= total:
                bar.stop()

        def build() -> LoadedEngine:
            loaded = build_engine(config, progress=show)
            return keep_prefixes(loaded, config) if isinstance(config, ServerConfig) else loaded

        yield AsyncEngine(build)
