"""A fleet as its user starts it, in a process of its own, and what can be done to it from outside.

Needs Ray only in the fleet's process and in nobody's tests.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from serving import wait_until

_ROOT = Path(__file__).parents[2]
_REPLICA = b"ray::ServeReplica:kvserve:replicas"


@dataclass(frozen=True)
class FleetProcess:
    """A fleet that is ready."""

    url: str
    process: subprocess.Popen[bytes]

    @property
    def replica_pids(self) -> list[int]:
        """The processes of its replicas; there is one fleet at a time on the machine."""
        return sorted(
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if _command(path).startswith(_REPLICA)
        )

    @property
    def num_ready(self) -> int:
        answer = httpx.get(f"{self.url}/ready", timeout=30)
        return answer.json().get("ready_replicas", 0) if answer.status_code == 200 else 0

    def kill_replica(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def wait_until_whole(self, count: int) -> None:
        """Wait until so many replicas are ready."""
        assert wait_until(lambda: self.num_ready == count, 120), "the replicas did not come back"


def _command(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def fleet_process(
    model: Path, *options: str, replicas: int = 2, prelude: str = ""
) -> Iterator[FleetProcess]:
    """Run `kvserve fleet` while the block runs; in the end it must drain and exit with code 0.

    Args:
        model: What it serves.
        options: More of its options.
        replicas: How many.
        prelude: Code that the front's process runs first.
    """
    port = free_port()
    command = [sys.executable, "-c", f"{prelude}from server.cli import main; main()", "fleet",
               "--model", str(model), "--replicas", str(replicas), "--port", str(port),
               "--threads", "1", "--kv-cache-memory", "64MiB", "--no-dashboard",
               "--no-access-log", *options]  # fmt: skip
    paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)), "RAY_AUTH_MODE": "disabled",
    }  # fmt: skip
    process = subprocess.Popen(command, cwd=_ROOT, env=environment, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        is_ready = any(b" replicas on " in line for line in process.stderr)
        assert is_ready, f"the fleet ended with code {process.wait()}"
        yield FleetProcess(f"http://127.0.0.1:{port}", process)
    except BaseException:
        process.kill()
        raise
    finally:
        process.terminate()
        _, rest = process.communicate(timeout=120)
        sys.stderr.write(rest.decode())
    assert process.returncode == 0, f"the fleet ended with code {process.returncode}"
