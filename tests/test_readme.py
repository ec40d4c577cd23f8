"""What the two READMEs say of files, commands and tests is held to the truth."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from server.cli import app

TESTS = Path(__file__).parent
ROOT = TESTS.parent
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ROW = re.compile(r"\| (H\d\d) \| [^|]+ \| (.+) \|")


def test_every_entry_names_tests_that_are_there():
    """Each entry from H01 to H49 has its row, and each test in it exists."""
    rows = dict(ROW.findall((TESTS / "README.md").read_text()))
    assert list(rows) == [f"H{number:02}" for number in range(1, 50)]
    for entry, names in rows.items():
        for path, test in re.findall(r"`([\w/.]+)::(\w+)`", names):
            functions = {
                node.name
                for node in ast.parse((TESTS / path).read_text()).body
                if isinstance(node, ast.FunctionDef)
            }
            assert test in functions, f"{entry}: {path} has no {test}"


def test_the_file_tree_is_up_to_date():
    """The architecture page lists every source file with the first sentence of its head."""
    command = [sys.executable, str(ROOT / ".ci" / "file-tree")]
    tree = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert tree.strip() in page, "run .ci/file-tree --write"


def test_every_command_is_there():
    """The README names all commands of kvserve, and none that does not exist."""
    named = set(re.findall(r"\| `kvserve (\w+)", README))
    assert named == set(get_command(app).commands)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path):
    """Each relative link of a page is a file or a folder of the project."""
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []
