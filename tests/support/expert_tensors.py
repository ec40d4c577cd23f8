"""How the conversion to GGUF writes mixtures of experts."""

from __future__ import annotations

import re

import gguf
import numpy as np
from family_case import Array
from transformers import PretrainedConfig

_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")


def stacked_experts(tensors: dict[str, Array]) -> dict[str, Array]:
    """Put the matrices of a layer's experts into one tensor, in their order."""
    stacks: dict[str, dict[int, Array]] = {}
    found: dict[str, Array] = {}
    for name, weight in tensors.items():
        match = _EXPERT.fullmatch(name)
        if match:
            stacks.setdefault(f"{match[1]}.{match[3]}.weight", {})[int(match[2])] = weight
        else:
            found[name] = weight
    return found | {
        name: np.stack([parts[i] for i in range(len(parts))]) for name, parts in stacks.items()
    }


def add_expert_fields(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    """How many experts there are and how many a token passes."""
    writer.add_expert_count(getattr(config, "num_local_experts", None) or config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    width = getattr(config, "moe_intermediate_size", config.intermediate_size)
    writer.add_expert_feed_forward_length(width)
