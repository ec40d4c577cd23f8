"""choose_device: where a model runs, and why.

Asks torch what there is; nothing is allocated but one number on the card, which shows that it
works. A card counts as usable if this torch has code for it and the weights fit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from model.errors import CheckpointError

_BFLOAT16_CAPABILITY = (8, 0)
_WEIGHTS_SHARE = 0.9
"""The part of a card's free memory that weights may take, so that there is room for a cache."""


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """Where a model runs."""

    device: torch.device
    reason: str
    has_bfloat16: bool = True
    """Whether the device multiplies bfloat16 by itself; else weights are widened to float32."""


def choose_device(wanted: str, *, weights_bytes: int = 0) -> DeviceChoice:
    """Decide between the CPU and a card.

    Args:
        wanted: auto takes the first CUDA device if it is usable, and the CPU otherwise.
        weights_bytes: Memory that the weights will take.

    Raises:
        CheckpointError: A CUDA device is asked for by name and cannot be used; says why.
    """
    if wanted == "cpu":
        return DeviceChoice(torch.device("cpu"), "asked for")
    card = torch.device("cuda", int(wanted.partition(":")[2] or 0))
    problem = _problem(card, weights_bytes=weights_bytes)
    if problem is None:
        capability = torch.cuda.get_device_capability(card)
        name = torch.cuda.get_device_name(card)
        return DeviceChoice(
            card,
            f"{name}, compute capability {capability[0]}.{capability[1]}",
            has_bfloat16=capability >= _BFLOAT16_CAPABILITY,
        )
    if wanted == "auto":
        return DeviceChoice(torch.device("cpu"), problem)
    raise CheckpointError(f"The device is {wanted}, but it cannot be used: {problem}.")


def _problem(card: torch.device, *, weights_bytes: int) -> str | None:
    """Say what keeps a card from being used; None if nothing does."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    count = torch.cuda.device_count()
    assert card.index is not None
    if card.index >= count:
        return f"there is no CUDA device {card.index}, only {count}"
    capability = torch.cuda.get_device_capability(card)
    if not _has_code_for(capability, torch.cuda.get_arch_list()):
        return (
            f"this torch has no code for compute capability {capability[0]}.{capability[1]} "
            f"(only for {', '.join(torch.cuda.get_arch_list())})"
        )
    try:
        torch.zeros(1, device=card)
        free = torch.cuda.mem_get_info(card)[0]
    except (RuntimeError, torch.AcceleratorError) as error:
        return f"it does not work: {str(error).splitlines()[0]}"
    if weights_bytes > free * _WEIGHTS_SHARE:
        return f"the weights take {weights_bytes:,} bytes, but only {free:,} are free on it"
    return None


def _has_code_for(capability: tuple[int, int], architectures: list[str]) -> bool:
    """Whether some binary or portable code in torch runs on a card.

    Binary code (sm_80) runs on its own major version from its minor on, portable code
    (compute_80) on everything from its own on.
    """
    for architecture in architectures:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", architecture)
        if match is None:
            continue
        kind, own = match[1], (int(match[2]), int(match[3]))
        if own <= capability and (kind == "compute" or own[0] == capability[0]):
            return True
    return False
