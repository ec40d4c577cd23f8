"""What makes a release: the version and the changelog change together or not at all."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CHANGES = "# Changelog\n\n## Unreleased\n\n- Something new.\n\n## 0.1.0\n\n- The first.\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the two files that name versions."""
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.1.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    return tmp_path


def bump(project: Path, version: str) -> subprocess.CompletedProcess[str]:
    """Run the script there."""
    command = [sys.executable, str(ROOT / ".ci" / "bump-version"), version]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)


def test_a_version_takes_over_what_was_unreleased(project: Path):
    """The new version stands in both files, above the last, and nothing is unreleased."""
    assert bump(project, "0.2.0").returncode == 0
    assert 'version = "0.2.0"' in (project / "pyproject.toml").read_text()
    changes = re.sub(r"\d{4}-\d\d-\d\d", "DAY", (project / "CHANGELOG.md").read_text())
    assert changes == CHANGES.replace("Unreleased\n", "Unreleased\n\n## 0.2.0, DAY\n")


def test_a_version_follows_the_last(project: Path):
    """A version that skips one or goes back is refused with those that may follow."""
    done = bump(project, "0.1.0")
    assert done.returncode == 1
    assert "must be one of 0.1.1, 0.2.0, 1.0.0 (got 0.1.0)" in done.stderr
    assert (project / "CHANGELOG.md").read_text() == CHANGES


def test_a_version_nobody_would_notice_is_refused(project: Path):
    """Without a line in the changelog there is no release."""
    (project / "CHANGELOG.md").write_text(CHANGES.replace("- Something new.\n", ""))
    done = bump(project, "0.2.0")
    assert done.returncode == 1
    assert "nothing under 'Unreleased'" in done.stderr
    assert "0.1.0" in (project / "pyproject.toml").read_text()


def test_this_project_can_be_released():
    """The changelog has its unreleased section and knows the version of pyproject.toml."""
    changes = (ROOT / "CHANGELOG.md").read_text()
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    headings = re.findall(r"^## ([^,\n]+)", changes, re.MULTILINE)
    assert headings[:2] == ["Unreleased", version[1]]
