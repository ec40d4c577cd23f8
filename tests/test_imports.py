"""The shape of the code, where import-linter's contracts in pyproject.toml do not reach."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("cache", "model", "server")
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if path.name != "__init__.py"
}
MARKERS = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("__init__.py"))


def test_the_contracts_hold():
    """Arrows between packages point one way, and no package holds a circle."""
    linter = Path(sys.executable).with_name("lint-imports")
    command = [linter, "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("marker", MARKERS, ids=lambda path: path.parent.name)
def test_a_package_says_what_it_is_and_imports_nothing(marker: Path):
    """Each `__init__.py` holds what its package is for, and no names from its modules."""
    (docstring,) = ast.parse(marker.read_text(encoding="utf-8")).body
    assert isinstance(docstring, ast.Expr)


def test_every_folder_with_modules_is_a_package():
    """What has no `__init__.py` would be missing from the built wheel."""
    assert {path.parent for path in MODULES.values()} <= {marker.parent for marker in MARKERS}


def test_no_package_marker_under_tests():
    """A marker such as tests/model/__init__.py would shadow the package of that name."""
    assert list((ROOT / "tests").rglob("__init__.py")) == []


@pytest.mark.parametrize("module", MODULES)
def test_no_module_shadows_a_library(module: str):
    """No module or package carries the name of a standard library module or of a dependency."""
    dependencies = {"safetensors", "tokenizers", "gguf", "torch", "jinja2", "openai", "numpy"}
    assert not {*module.split(".")} & (sys.stdlib_module_names | dependencies)


def test_no_two_classes_share_a_name():
    """A class's name says which one is meant, wherever it is read."""
    names = [
        node.name
        for path in MODULES.values()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    assert [name for name, count in Counter(names).items() if count > 1] == []
