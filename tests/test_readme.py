"""tests/README.md says which test holds which kind of fault; here it is held to the truth."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
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
