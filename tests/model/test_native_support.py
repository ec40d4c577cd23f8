"""What the kernels cannot run is named; all that the known families ask for they can."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checkpoints import RANDOM_CONFIGS, random_model
from hf_reference import ours_from

from model.native_support import unsupported_feature


@pytest.mark.parametrize("name", sorted(RANDOM_CONFIGS))
def test_known_families_are_run_whole(name):
    """No family of the random checkpoints has anything the kernels lack."""
    assert unsupported_feature(ours_from(random_model(RANDOM_CONFIGS[name])).config) is None


def test_an_unknown_activation_is_named():
    """The feature is said as the configuration calls it."""
    config = ours_from(random_model(RANDOM_CONFIGS["rand-llama-tied"])).config
    assert unsupported_feature(replace(config, activation="relu2")) == "the activation relu2"
