"""serve_file and its check: what a cluster is told, and whether Ray heeds all of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from server.errors import ConfigurationError
from server.fleet.fleet_config import FleetConfig
from server.fleet.serve_file import serve_file

ROOT = Path(__file__).parents[3]


def check(content: dict[str, Any]) -> None:
    """Check a file as Ray would read it; needs Ray."""
    module = pytest.importorskip("server.fleet.serve_file_check", exc_type=ImportError)
    module.check_serve_file(content)


def test_a_file_holds_what_was_asked_for_and_no_key():
    """Options that differ from their defaults are in it; what is not the cluster's is not."""
    config = FleetConfig(api_key="secret", replicas=3, max_num_seqs=8, dashboard=False)
    text = serve_file(config)
    (application,) = json.loads(text)["applications"]
    assert application["args"] == {"replicas": 3, "max_num_seqs": 8}
    assert "secret" not in text


def test_ray_accepts_the_file():
    """What is printed for a cluster is what Ray's schema allows."""
    check(json.loads(serve_file(FleetConfig(max_replicas=4))))


def test_ray_accepts_the_file_of_the_manifest():
    """The manifest for KubeRay holds such a file too."""
    manifest = yaml.safe_load((ROOT / "deploy" / "ray" / "rayservice.yaml").read_text())
    check(yaml.safe_load(manifest["spec"]["serveConfigV2"]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"aplications": []}, "aplications is no key"),
        ({"http_options": {"prot": 1}}, "http_options.prot is no key"),
        ({"applications": [{"import_path": "a:b", "arg": {}}]}, "applications.0.arg is no key"),
        ({"http_options": {"port": "x"}}, "http_options.port"),
    ],
)
def test_keys_that_ray_would_ignore_are_errors(change, words):
    """A misspelt key is named with its place."""
    content = json.loads(serve_file(FleetConfig())) | change
    with pytest.raises(ConfigurationError, match=words):
        check(content)


def test_our_own_options_are_checked():
    """An argument that is out of bounds or unknown is refused before it comes to a cluster."""
    content = json.loads(serve_file(FleetConfig()))
    for wrong in ({"replicas": 0}, {"replica": 2}):
        content["applications"][0]["args"] = wrong
        with pytest.raises(ConfigurationError):
            check(content)
