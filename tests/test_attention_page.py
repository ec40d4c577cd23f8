"""The lesson about attention is run: its examples, its table, its commands and its figures."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from model.attention_forms.form_cost import FormSizes, cost_table
from server.cli import app

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = (DOCS / "attention.md").read_text()
COMMANDS = re.findall(r"`kvserve ([^`]+)`", PAGE)


def test_every_example_gives_what_it_says():
    """The examples of the page run one after the other, in one session."""
    examples = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL))
    assert examples.count(">>>") > 20
    test = doctest.DocTestParser().get_doctest(examples, {}, "attention.md", None, 0)
    report: list[str] = []
    result = doctest.DocTestRunner().run(test, out=report.append)
    assert result.failed == 0, "".join(report)
    assert result.attempted > 20


def test_the_table_of_costs_is_the_projects():
    """It is what model/attention_forms/form_cost.py says for the sizes on the page."""
    assert cost_table(FormSizes(tokens=4096)) in PAGE


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_is_one(line: str):
    """Each command on the page exists, and so does each of its options."""
    name, *arguments = shlex.split(line)
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "300"})
    assert shown.exit_code == 0
    options = [argument for argument in arguments if argument.startswith("--")]
    assert [option for option in options if option not in shown.output] == []


def test_the_options_of_the_perplexity_table_are_options():
    """What a row of that table adds to the command exists, too."""
    shown = CliRunner().invoke(app, ["perplexity", "--help"], env={"COLUMNS": "300"}).output
    rows = re.findall(r"\| `(--window [^`]+)` \|", PAGE)
    assert len(rows) == 4
    assert {option for row in rows for option in re.findall(r"--[\w-]+", row)} <= set(
        re.findall(r"--[\w-]+", shown)
    )


def test_every_figure_is_made_by_a_command_on_the_page():
    """Whoever doubts a figure finds how to draw it again."""
    figures = re.findall(r"!\[[^]]*\]\((\w+\.png)\)", PAGE)
    assert figures == ["compare.png", "attention.png", "forms.png"]
    for figure in figures:
        assert any(f" docs/{figure}" in command for command in COMMANDS)
        assert (DOCS / figure).stat().st_size < 200_000
