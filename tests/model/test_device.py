"""Where a model runs is decided by what a card can do, and said."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from model.device import choose_device
from model.errors import CheckpointError


@dataclass
class Card:
    """What torch says of the cards of a machine."""

    capability: tuple[int, int] = (9, 0)
    architectures: tuple[str, ...] = ("sm_80", "sm_90", "compute_90")
    count: int = 2
    free: int = 10_000
    broken: bool = False


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    """A machine with cards, as the test then describes it."""
    card, zeros = Card(), torch.zeros

    def allocate(*size: int, device: torch.device) -> torch.Tensor:
        if card.broken:
            raise RuntimeError("CUDA error: device busy\nand more")
        return zeros(*size)

    monkeypatch.setattr(torch, "zeros", allocate)
    for name, answer in {
        "is_available": lambda: True,
        "device_count": lambda: card.count,
        "get_device_capability": lambda _device: card.capability,
        "get_device_name": lambda _device: "Card X",
        "get_arch_list": lambda: list(card.architectures),
        "mem_get_info": lambda _device: (card.free, 2 * card.free),
    }.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    return card


def test_auto_takes_a_usable_card(card):
    """The choice names the card and what it can do."""
    choice = choose_device("auto", weights_bytes=9000)
    assert choice.device == torch.device("cuda", 0)
    assert choice.reason == "Card X, compute capability 9.0"
    assert choice.has_bfloat16


def test_a_card_is_chosen_by_number(card):
    """cuda:1 is the second card, and one that is not there is named."""
    assert choose_device("cuda:1").device == torch.device("cuda", 1)
    with pytest.raises(CheckpointError, match="no CUDA device 2, only 2"):
        choose_device("cuda:2")


def test_an_old_card_has_no_bfloat16(card):
    """Before capability 8.0 bfloat16 is not multiplied by the card."""
    card.capability, card.architectures = (7, 5), ("sm_70", "sm_75")
    assert not choose_device("cuda").has_bfloat16


@pytest.mark.parametrize(
    ("capability", "runs"),
    [((8, 0), True), ((8, 9), True), ((9, 0), True), ((12, 0), True), ((7, 5), False)],
)
def test_code_for_another_card_is_no_code(card, capability, runs):
    """Binary code runs within its major version, portable code on all that came later."""
    card.capability = capability
    assert (choose_device("auto").device.type == "cuda") is runs


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"capability": (7, 0)}, "no code for compute capability 7.0 .only for sm_80"),
        ({"broken": True}, "it does not work: CUDA error: device busy[.]$"),
        ({"free": 100}, "the weights take 9,000 bytes, but only 100 are free"),
        ({"count": 0}, "no CUDA device 0"),
    ],
)
def test_auto_falls_back_to_the_cpu_and_says_why(card, change, reason):
    """What auto passes over is an error for who asked for it by name."""
    for name, value in change.items():
        setattr(card, name, value)
    choice = choose_device("auto", weights_bytes=9000)
    assert choice.device.type == "cpu"
    with pytest.raises(CheckpointError, match=reason):
        choose_device("cuda", weights_bytes=9000)


def test_the_cpu_is_taken_when_asked_for(card):
    """A usable card changes nothing about that."""
    assert choose_device("cpu").device.type == "cpu"
