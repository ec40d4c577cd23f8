"""model.formats.default_params: what a model's authors recommend is held to a request's bounds."""

from __future__ import annotations

import json
import math

import pytest

from model.errors import ConfigError
from model.formats.default_params import checked_defaults
from model.formats.loader import load_model


def test_what_may_be_asked_for_may_be_a_default():
    """Bounds included, absent ones left out."""
    found = {"temperature": 0, "top_p": 1.0, "top_k": -1, "min_p": None, "repetition_penalty": 1.1}
    checked = checked_defaults(found, "a file")
    assert checked == {"temperature": 0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.1}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -5),
        ("temperature", "hot"),
        ("temperature", True),
        ("temperature", math.nan),
        ("top_p", 7),
        ("top_p", [0.9]),
        ("top_k", -2),
        ("top_k", 1.5),
        ("top_k", math.inf),
        ("min_p", 1.01),
        ("repetition_penalty", 0),
    ],
)
def test_what_no_request_may_ask_for_is_refused_by_name(name, value):
    """The message names the file, the parameter, the bounds and the value."""
    with pytest.raises(ConfigError, match=rf"a file: {name} must be .* from .* to .* \(got "):
        checked_defaults({name: value}, "a file")


def test_a_model_with_such_defaults_is_not_loaded(checkpoint_copy):
    """Nobody would see them otherwise, and every answer would be wrong."""
    folder = checkpoint_copy("rand-llama-tied")
    (folder / "generation_config.json").write_text(json.dumps({"temperature": -5}))
    with pytest.raises(ConfigError, match=r"generation_config.json: temperature .* \(got -5\)"):
        load_model(folder)
