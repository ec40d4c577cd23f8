"""The engine on a pretended GPU: the CPU's tokens, few launches, and hardly a wait."""

from __future__ import annotations

import interpreted  # noqa: F401 - before anything of model.cuda
import pytest
from checkpoints import RANDOM_CONFIGS
from engines import load_engine, make_request, run
from pretend_cuda import pretended

FAMILIES = [name for name in RANDOM_CONFIGS if "rope" not in name]


def answers(engine, **params) -> list[list[int]]:
    """What two prompts get, the second of which arrives with several tokens to a step."""
    requests = [
        make_request([3, 1, 4, 1, 5], max_tokens=4, ignore_eos=True, **params),
        make_request([2, 7] * 6, max_tokens=4, ignore_eos=True, **params),
    ]
    return [result.token_ids for result in run(engine, requests)]


@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_are_those_of_the_cpu(checkpoint, monkeypatch, name):
    """Auto takes the card, every tensor is on it, and the tokens are the CPU's in float32."""
    path = checkpoint(name)
    wanted = answers(load_engine(path, device="cpu", kernels="off").engine)
    with pretended(monkeypatch):
        loaded = load_engine(path)
        assert loaded.info.device == "cuda"
        found = answers(loaded.engine)
    assert found == wanted
