"""Weights of our encoder and decoder layers, put into torch.nn's."""

from __future__ import annotations

import torch
from torch import nn

_NAMES = {
    "feed_forward.up_proj": "linear1",
    "feed_forward.down_proj": "linear2",
    "attention_norm": "norm1",
}


def copy_weights(ours: nn.Module, theirs: nn.Module) -> None:
    """Give torch's layer the weights of ours; every one of torch's is given.

    Args:
        ours: An EncoderLayer or a CrossDecoderLayer.
        theirs: torch.nn.TransformerEncoderLayer or DecoderLayer of the same sizes.
    """
    weights = ours.state_dict()
    crosses = hasattr(ours, "cross_attn")
    names = {
        **_NAMES,
        "cross_norm": "norm2",
        "feed_forward_norm": "norm3" if crosses else "norm2",
    }
    found = {}
    for prefix, theirs_prefix in (("self_attn", "self_attn"), ("cross_attn", "multihead_attn")):
        if f"{prefix}.q_proj.weight" not in weights:
            continue
        for kind in ("weight", "bias"):
            parts = [weights.pop(f"{prefix}.{name}_proj.{kind}") for name in "qkv"]
            found[f"{theirs_prefix}.in_proj_{kind}"] = torch.cat(parts)
            found[f"{theirs_prefix}.out_proj.{kind}"] = weights.pop(f"{prefix}.o_proj.{kind}")
    for name, weight in weights.items():
        module, _, kind = name.rpartition(".")
        found[f"{names[module]}.{kind}"] = weight
    theirs.load_state_dict(found)
