"""The engine on a pretended GPU: the CPU's tokens, few launches, and hardly a wait."""

from __future__ import annotations

import interpreted  # noqa: F401 - before anything of model.cuda
import pytest
from checkpoints import RANDOM_CONFIGS
from engines import load_engine, make_request, run
from pretend_cuda import pretended

FIRST, *OTHERS = (name for name in RANDOM_CONFIGS if "rope" not in name)
FAMILIES = [FIRST, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
MOST_WAITS = 1
SMALL = {"max_num_seqs": 2, "max_num_batched_tokens": 32, "max_model_len": 64}


def answers(engine) -> list[list[int]]:
    """What two prompts get."""
    requests = [
        make_request([3, 1, 4, 1, 5], max_tokens=3, ignore_eos=True),
        make_request([2, 7] * 6, max_tokens=3, ignore_eos=True),
    ]
    return [result.token_ids for result in run(engine, requests)]


@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_are_those_of_the_cpu(checkpoint, monkeypatch, name):
    """Auto takes the card, every tensor is on it, and the tokens are the CPU's in float32."""
    path = checkpoint(name)
    wanted = answers(load_engine(path, device="cpu", kernels="off", **SMALL).engine)
    with pretended(monkeypatch):
        loaded = load_engine(path, **SMALL)
        assert loaded.info.device == "cuda"
        found = answers(loaded.engine)
    assert found == wanted


class OnlyEven:
    """A grammar that allows even tokens."""

    is_broken = False

    def fill(self, words) -> None:
        words[:] = 0x55555555

    def accept(self, _token_id: int) -> None:
        pass


@pytest.mark.parametrize(
    ("params", "grammar"),
    [
        ({}, None),
        ({"temperature": 1.0, "seed": 3, "top_k": 20, "top_p": 0.9, "min_p": 0.01}, None),
        ({}, OnlyEven()),
    ],
)
def test_a_decode_step_waits_once_and_launches_little(checkpoint, monkeypatch, params, grammar):
    """Whatever its requests ask for, a step waits for its tokens only."""
    with pretended(monkeypatch) as card:
        loaded = load_engine(checkpoint("rand-llama-tied"), **SMALL)
        engine, requests = loaded.engine, []
        for start in (3, 9):
            request = make_request([start, 7, 8], max_tokens=12, ignore_eos=True, **params)
            request.grammar = grammar
            requests.append(request)
            engine.add(request)
        for _ in range(3):
            engine.step()
        card.waits.clear()
        before = card.num_launches
        engine.step()
        assert len(card.waits) <= MOST_WAITS, card.waits
        assert card.num_launches - before <= 12 * loaded.info.num_layers + 20
    if grammar:
        assert all(token % 2 == 0 for one in requests for token in one.token_ids[3:])


def test_a_mixed_step_waits_once(checkpoint, monkeypatch):
    """A prompt beside a request that decodes adds no wait."""
    with pretended(monkeypatch) as card:
        engine = load_engine(checkpoint("rand-llama-tied"), **SMALL).engine
        engine.add(make_request([5, 6], max_tokens=9, ignore_eos=True))
        for _ in range(2):
            engine.step()
        engine.add(make_request([1, 2, 3, 4], max_tokens=9, ignore_eos=True))
        card.waits.clear()
        engine.step()
        assert len(card.waits) <= MOST_WAITS, card.waits
