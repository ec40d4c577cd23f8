"""schemathesis against what /openapi.json says of the server.

KVSERVE_SCHEMATHESIS is how many requests of each operation are tried: few in CI, many by hand.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from server_process import ServerProcess, build_checkpoint, server_process

schemathesis = pytest.importorskip("schemathesis")
hypothesis = pytest.importorskip("hypothesis")

pytestmark = [pytest.mark.clients, pytest.mark.timeout(6000)]
NUM_EXAMPLES = int(os.environ.get("KVSERVE_SCHEMATHESIS", "10"))
PATIENCE = 180
"""Seconds after which something hangs; nothing is timed otherwise."""
ENDLESS = ("/kv/stream",)


@pytest.fixture(scope="module")
def tiny_server(tmp_path_factory) -> Iterator[ServerProcess]:
    model = build_checkpoint("rand-llama-tied", tmp_path_factory.mktemp("checkpoints"))
    with server_process(model, max_model_len=128, max_queue=1_000_000, log_level="error") as server:
        yield server


@pytest.fixture(scope="module")
def described(tiny_server):
    return schemathesis.openapi.from_url(f"{tiny_server.url}/openapi.json")


def check_error(case, answer) -> None:
    """The shape that the clients of a path read, and never a fault of the server's."""
    assert 400 <= answer.status_code < 500, f"{answer.text} to {case.as_curl_command()}"
    assert answer.status_code != 422
    error = answer.json()["error"]
    assert isinstance(error["message"], str)
    if case.operation.path.startswith("/v1/messages"):
        assert answer.json()["type"] == "error"
    else:
        assert error.keys() == {"message", "type", "param", "code"}


def test_what_the_description_allows_is_answered_as_described(described, tiny_server, subtests):
    """No request made from the description brings a 5xx, a hang or another shape than described.

    A request of the caller's making may still be refused: the description knows neither the
    context nor what contradicts what.
    """
    operations = [operation.ok() for operation in described.get_all_operations()]
    assert len(operations) > 20
    num_tried = 0

    for operation in operations:
        if operation.path in ENDLESS:
            continue

        @hypothesis.given(case=operation.as_strategy())
        @hypothesis.settings(
            max_examples=NUM_EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        def attempt(case) -> None:
            nonlocal num_tried
            num_tried += 1
            answer = case.call(base_url=tiny_server.url, timeout=PATIENCE)
            if answer.status_code != 200:
                check_error(case, answer)
            case.validate_response(
                answer,
                checks=[
                    schemathesis.checks.not_a_server_error,
                    schemathesis.checks.status_code_conformance,
                    schemathesis.checks.content_type_conformance,
                    schemathesis.checks.response_schema_conformance,
                ],
            )

        with subtests.test(operation.label):
            attempt()
    print(f"{num_tried} requests of {len(operations)} operations")  # noqa: T201 - for -s
    assert num_tried > NUM_EXAMPLES * len(operations) / 4
