"""Typed access to what somebody else wrote, and how its faults are named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from model.errors import ConfigError
from model.families.fields import Fields

FIELDS = Fields(
    {"n": 3, "x": 1.5, "on": True, "word": "silu", "kinds": ["a", "b"], "inner": {"n": -1}}
)


def test_values_come_back_with_their_types() -> None:
    """Present fields are read as they are, absent and null ones as their defaults."""
    assert FIELDS.integer("n") == 3
    assert FIELDS.number("n") == 3.0
    assert FIELDS.number("x") == 1.5
    assert FIELDS.flag("on", default=False) is True
    assert FIELDS.text("word", known=("silu",)) == "silu"
    assert FIELDS.strings("kinds", length=2) == ["a", "b"]
    assert Fields({"n": None}).integer("n", 7) == 7
    assert "n" not in Fields({"n": None})
    assert Fields({}).over({"n": 7}).integer("n") == 7
    assert "n" not in Fields({"n": None}).over({"n": 7})


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda: FIELDS.integer("absent"), "absent is missing"),
        (lambda: FIELDS.integer("n", maximum=2), "n is 3; expected between 1 and 2"),
        (lambda: FIELDS.integer("on"), "on is True; expected a whole number"),
        (lambda: FIELDS.integer("x"), "x is 1.5; expected a whole number"),
        (lambda: Fields({"n": 2**40}).integer("n"), "n is 1099511627776; expected between"),
        (lambda: FIELDS.number("word"), "word is 'silu'; expected a number"),
        (lambda: Fields({"x": float("nan")}).number("x"), "x is nan; expected a finite number"),
        (lambda: Fields({"x": 10**400}).number("x"), "expected a finite number"),
        (lambda: Fields({"x": 0}).number("x"), "x is 0; expected above 0"),
        (lambda: Fields({"x": -1}).number("x", minimum=0), "x is -1; expected at least 0"),
        (lambda: FIELDS.flag("n", default=True), "n is 3; expected true or false"),
        (lambda: FIELDS.text("n"), "n is 3; expected a string"),
        (lambda: FIELDS.text("word", known=("b", "a")), "word is 'silu'; expected one of a, b"),
        (lambda: FIELDS.strings("kinds", length=3), "kinds is '2 entries'; expected 3"),
        (lambda: FIELDS.strings("word", length=1), "word is 'silu'; expected a list of strings"),
        (lambda: FIELDS.within("n"), "n is 3; expected a mapping"),
        (lambda: FIELDS.within("inner").integer("n"), "inner.n is -1"),
        (lambda: FIELDS.refuse("x", neutral=(1.0,)), "x is 1.5; expected 1.0; the feature"),
        (lambda: FIELDS.refuse("x", neutral=()), "x is 1.5; expected its absence; the feature"),
        (lambda: Fields({"a.n": 0}, prefix="a.").integer("n"), "a.n is 0"),
        (lambda: Fields({"n": "y" * 10_000}).integer("n"), "yyy...; expected a whole number"),
    ],
)
def test_faults_name_field_value_and_expectation(read: Callable[[], object], words: str) -> None:
    """Each error carries the field's full name, the value found, and what was expected."""
    with pytest.raises(ConfigError) as caught:
        read()
    assert words in str(caught.value)
    assert len(str(caught.value)) < 300
