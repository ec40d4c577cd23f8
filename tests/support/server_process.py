"""Servers in processes of their own, for tests that need no more of kvserve than its sockets.

KVSERVE_PYTHON names the interpreter that has kvserve, where the tests' own has not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

PYTHON = os.environ.get("KVSERVE_PYTHON", sys.executable)
_SUPPORT = Path(__file__).parent
_ROOT = _SUPPORT.parents[1]
_SECONDS_TO_DRAIN = 120


@dataclass(frozen=True)
class ServerProcess:
    """Where a server listens, and what can be seen of it from outside."""

    url: str
    pid: int

    @property
    def num_threads(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))

    @property
    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    @property
    def num_files(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    @property
    def num_sleeps(self) -> int:
        """How often its threads have waited for something; those that sleep on add nothing."""
        states = Path(f"/proc/{self.pid}/task").glob("*/status")
        lines = [line.split() for state in states for line in state.read_text().splitlines()]
        return sum(int(line[1]) for line in lines if line[0] == "voluntary_ctxt_switches:")

    def gauge(self, name: str) -> float:
        """The value of a gauge that /metrics shows."""
        text = httpx.get(f"{self.url}/metrics", timeout=60).text
        line = next(line for line in text.splitlines() if line.startswith(f"{name}{{"))
        return float(line.rpartition(" ")[2])

    @property
    def is_idle(self) -> bool:
        """Whether no request runs or waits."""
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
        return all(self.gauge(name) == 0 for name in names)


@contextmanager
def server_process(model: str | Path | None, **options: object) -> Iterator[ServerProcess]:
    """Serve a model while the block runs, with these ServerConfig fields; None is the default one.

    In the end the server must drain, exit with code 0 and find its cache in order.
    """
    fields = {"model": None if model is None else str(model), "threads": 1, "access_log": False}
    process = subprocess.Popen(
        [PYTHON, str(_SUPPORT / "audited_server.py"), json.dumps(fields | options)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
        env=os.environ | {"PYTHONPATH": str(_ROOT)},
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port, "the server did not start"
        yield ServerProcess(url=f"http://127.0.0.1:{port}", pid=process.pid)
    except BaseException:
        process.kill()
        raise
    finally:
        process.terminate()
        code = process.wait(_SECONDS_TO_DRAIN)
        process.stdout.close()
    assert code == 0, f"the server ended with code {code}"


def build_checkpoint(name: str, folder: Path) -> Path:
    """One of checkpoints.NAMES, written by the interpreter that has what it takes."""
    script = "import sys, pathlib, checkpoints; checkpoints.build(sys.argv[1], pathlib.Path('.'))"
    subprocess.run(
        [PYTHON, "-c", script, name],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(_SUPPORT)},
        check=True,
        capture_output=True,
    )
    return folder / name
