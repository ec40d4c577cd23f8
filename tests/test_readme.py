"""What the READMEs and the pages of docs say of files, commands, options and tests is true."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic.fields import FieldInfo
from typer.main import get_command

from server.cli import app
from server.config import ServerConfig

TESTS = Path(__file__).parent
ROOT = TESTS.parent
README = (ROOT / "README.md").read_text()
PAGES = sorted(path for folder in ("", ".github", "docs") for path in (ROOT / folder).glob("*.md"))
ROW = re.compile(r"\| (H\d\d) \| [^|]+ \| (.+) \|")


def test_every_entry_names_tests_that_are_there():
    """Each entry from H01 to H67 has its row, and each test in it exists."""
    rows = dict(ROW.findall((TESTS / "README.md").read_text()))
    assert list(rows) == [f"H{number:02}" for number in range(1, 68)]
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


def test_the_readme_stays_short():
    """The README fits a reader's first ten minutes: at most 160 lines."""
    assert len(README.splitlines()) <= 160


def test_every_option_of_serve_is_described():
    """The page about operations has a row for each option, with its default and its meaning."""
    rows = re.findall(
        r"\| `--([\w-]+)` \| (?:`(.*?)`)? \| (.*) \|", (ROOT / "docs" / "operations.md").read_text()
    )
    assert rows == [
        (name.replace("_", "-"), _shown_default(field), " ".join((field.description or "").split()))
        for name, field in ServerConfig.model_fields.items()
    ]


def _shown_default(field: FieldInfo) -> str:
    """A default as the table shows it; what is found out at the start is `auto`."""
    if isinstance(field.default, bool):
        return "yes" if field.default else "no"
    if field.default is None:
        return "auto" if "auto" in (field.description or "") else ""
    return f"{field.default:g}" if isinstance(field.default, float) else str(field.default)


def test_the_life_of_a_request_passes_its_stations():
    """The architecture page follows a request through every station that it passes."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    life = page.partition("## The life of a request")[2].partition("## The files")[0]
    stations = (
        "app", "access", "api", "dispatcher", "json_body", "fields", "requests", "admission",
        "input_processor", "async_engine", "scheduler", "manager", "engine", "batch", "runner",
        "executor", "attention", "view", "pool", "sampler", "output_processor", "detokenizer",
        "outbox", "request_meter", "streaming", "writer", "choices", "event_stream",
    )  # fmt: skip
    assert [name for name in stations if f"/{name}.py)" not in life] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path):
    """Each relative link of a page is a file or a folder of the project."""
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []
