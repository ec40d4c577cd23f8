"""server.commands.start_lines: what a new user reads first is true and can be pasted."""

import json
import shlex

import httpx
import pytest
from fakes import FakeEngine
from serving import serving

from server.commands.start_lines import start_lines


@pytest.mark.parametrize("has_chat", [True, False])
def test_the_curl_works_as_it_stands(has_chat):
    """The last lines are one command that a shell runs and the server answers, greedily."""
    with serving(engine := FakeEngine("Paris.")) as url:
        lines = start_lines(engine.info, address=url, has_chat=has_chat)
        command = " ".join(lines[-2:]).replace("\\", "").removeprefix("  try     ")
        program, address, _, header, _, body = shlex.split(command)
        name, _, value = header.partition(": ")
        answer = httpx.post(address, content=body, headers={name: value})
    assert program == "curl"
    assert answer.status_code == 200
    assert json.loads(body)["temperature"] == 0
    assert engine.requests[-1].params.temperature == 0


def test_model_memory_and_page_are_named():
    """One line each, in that order."""
    info = FakeEngine("x").info
    _, model, memory, page, *_ = start_lines(info, address="http://host:1", has_chat=True)
    assert model.split(":")[0].split() == ["model", info.model_name]
    assert f"{info.num_cache_tokens:,} token" in memory
    assert page.split() == ["page", "http://host:1/"]
