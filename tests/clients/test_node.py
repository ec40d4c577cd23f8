"""npm's clients against the server: openai, and the Vercel AI SDK's openai-compatible provider.

KVSERVE_NODE_CLIENTS is the folder where .ci/check-clients has installed them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = os.environ.get("KVSERVE_NODE_CLIENTS", "")
SCRIPT = Path(__file__).parent / "node" / "clients.mjs"
pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(
        not FOLDER or shutil.which("node") is None, reason="needs Node and npm's clients"
    ),
]


@pytest.fixture(scope="module")
def said(url: str) -> dict:
    """What the script says of each client; modules are found beside it, so it is copied there."""
    script = shutil.copy(SCRIPT, FOLDER)
    done = subprocess.run(
        ["node", script, url], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_openai_answers(said):
    """Whole and streamed answers are the same, and the newer form says it too."""
    openai = said["openai"]
    assert "Paris" in openai["text"]
    assert openai["streamed"] == openai["text"]
    assert openai["response"] == openai["text"]
    assert openai["usage"]["total_tokens"] > openai["usage"]["prompt_tokens"] > 0
    assert openai["models"] == ["smollm2"]


def test_openai_assembles_a_streamed_call(said):
    """The stream helper, which checks every delta, puts the call together."""
    call = said["openai"]["call"]
    assert said["openai"]["finishReason"] == "tool_calls"
    assert (call["type"], call["function"]["name"]) == ("function", "weather")
    assert json.loads(call["function"]["arguments"])["city"] in ("Paris", "London")


def test_ai_sdk_answers(said):
    """Whole and streamed texts are the same, and usage arrives."""
    ai = said["ai"]
    assert "Paris" in ai["text"]
    assert ai["streamed"] == ai["text"]
    assert ai["usage"]["inputTokens"] > 0
    assert ai["usage"]["outputTokens"] > 0


def test_ai_sdk_calls_tools_and_makes_objects(said):
    """Calls fit their schema, streamed or not, and so does a generated object."""
    ai = said["ai"]
    assert ai["finishReason"] == "tool-calls"
    for value in (ai["call"], ai["streamedCall"], ai["object"]):
        assert value["city"] in ("Paris", "London")
        assert value["inDays"] in (0, 1)


@pytest.mark.parametrize("client", ["openai", "ai"])
def test_errors_are_read(said, client):
    """A refusal arrives with its status and its sentence."""
    failure = said[client]["failure"]
    assert failure["status"] == 400
    assert "'temperature' must be at least 0" in failure["message"]
