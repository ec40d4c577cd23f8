"""deploy/kubernetes: manifests that Kubernetes' own schemas accept and that agree with the server.

No cluster runs them here; what can be known without one is checked.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from server.config import ServerConfig

BASE = Path(__file__).parents[2] / "deploy" / "kubernetes" / "base"
VERSION = "1.37"


@pytest.fixture(scope="module")
def manifests() -> list[dict[str, Any]]:
    """What `kubectl apply -k` would send."""
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl")
    command = ["kubectl", "kustomize", str(BASE)]
    built = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return list(yaml.safe_load_all(built))


@pytest.fixture
def pod(manifests) -> dict[str, Any]:
    """The pod of the deployment."""
    return only(manifests, "Deployment")["spec"]["template"]["spec"]


def only(manifests: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [each for each in manifests if each["kind"] == kind]
    return found


def test_every_manifest_fits_its_schema(manifests):
    """Each is valid, with no field that Kubernetes does not know."""
    kinds = [each["kind"] for each in manifests]
    assert sorted(set(kinds)) == [
        "Deployment", "HorizontalPodAutoscaler", "PodDisruptionBudget", "Service",
    ]  # fmt: skip
    for manifest in manifests:
        kubernetes_validate.validate(manifest, VERSION, strict=True)


def test_a_wrong_field_would_be_found(manifests):
    """The check above can fail: a misspelt field is an error."""
    deployment = only(manifests, "Deployment")
    wrong = deployment | {"spec": deployment["spec"] | {"minReadySecond": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSION, strict=True)


def test_a_drain_has_the_time_it_needs(pod):
    """A request ends before the grace time does, and that before the pod is killed."""
    (container,) = pod["containers"]
    values = {each["name"]: each["value"] for each in container["env"]}
    limit, grace = float(values["KVSERVE_REQUEST_TIMEOUT"]), float(values["KVSERVE_GRACE"])
    pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert limit < grace
    assert pause + grace < pod["terminationGracePeriodSeconds"]


def test_the_variables_are_options(pod):
    """Each variable is an option of the server, with a value that it takes."""
    (container,) = pod["containers"]
    names = [each["name"].removeprefix("KVSERVE_").lower() for each in container["env"]]
    values = dict(zip(names, (each["value"] for each in container["env"]), strict=True))
    assert values.keys() <= ServerConfig.model_fields.keys()
    ServerConfig(**values)


def test_the_probes_ask_what_the_server_answers(pod):
    """Probes ask for paths that need no key; readiness ends at the first refusal."""
    (container,) = pod["containers"]
    probes = {name: container[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}
    assert {name: probe["httpGet"]["path"] for name, probe in probes.items()} == {
        "startup": "/ready", "readiness": "/ready", "liveness": "/health",
    }  # fmt: skip
    assert probes["readiness"]["failureThreshold"] == 1


def test_all_select_the_same_pods(manifests):
    """Services, budget and autoscaler mean the pods of the deployment."""
    deployment = only(manifests, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    selectors = [each["spec"]["selector"] for each in manifests if each["kind"] == "Service"]
    selectors.append(only(manifests, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"])
    assert all(selector.items() <= labels.items() and selector for selector in selectors)
    target = only(manifests, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", deployment["metadata"]["name"])
