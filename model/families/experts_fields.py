"""How families with mixtures of experts are read: their fields, and which layers are sparse."""

from __future__ import annotations

from collections.abc import Mapping

from model.config import ExpertsConfig
from model.families.fields import Fields

MAX_EXPERTS = 4096
"""Far more than any model has; beyond it a file is broken or hostile."""

GGUF_EXPERT_NAMES: Mapping[str, str] = {
    "ffn_gate_exps": "gate_proj",
    "ffn_up_exps": "up_proj",
    "ffn_down_exps": "down_proj",
}
"""Tensors of a GGUF file that hold all experts of a layer, outermost axis first."""
GGUF_SPARSE_NAMES: Mapping[str, str] = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
"""The others of a sparse layer."""


def hf_experts(
    fields: Fields, *, width: str, renormalize: bool, shared_width: int | None = None
) -> ExpertsConfig:
    """Read how many experts there are and how many a token passes.

    Args:
        fields: Of a config.json, with defaults for `num_experts` and `num_experts_per_tok`.
        width: The field with the width of an expert's hidden layer.
        renormalize: As ExpertsConfig has it.
        shared_width: Of the shared expert, if there is one.
    """
    count = "num_local_experts" if "num_local_experts" in fields else "num_experts"
    return ExpertsConfig(
        count=fields.integer(count, maximum=MAX_EXPERTS),
        per_token=fields.integer("num_experts_per_tok", maximum=MAX_EXPERTS),
        intermediate_size=fields.integer(width),
        renormalize=renormalize,
        shared_intermediate_size=shared_width,
    )


def hf_sparse_layers(fields: Fields, *, num_layers: int) -> tuple[bool, ...]:
    """Read which layers of a qwen are mixtures of experts."""
    step = fields.integer("decoder_sparse_step", 1)
    dense = fields.get("mlp_only_layers")
    if dense is None:
        dense = []
    if not isinstance(dense, list) or not all(isinstance(item, int) for item in dense):
        raise fields.error("mlp_only_layers", dense, "a list of layers")
    return tuple(i not in dense and (i + 1) % step == 0 for i in range(num_layers))


def gguf_experts(fields: Fields, *, renormalize: bool) -> ExpertsConfig | None:
    """Read the experts of GGUF metadata; None if there are none."""
    count = fields.integer("expert_count", 0, minimum=0, maximum=MAX_EXPERTS)
    if not count:
        return None
    for name, neutral in (
        ("expert_weights_scale", (0.0, 1.0)),
        ("expert_gating_func", (0, 1)),
        ("expert_group_count", (0, 1)),
    ):
        fields.refuse(name, neutral=neutral)
    default = fields.integer("feed_forward_length", 0, minimum=0) or None
    return ExpertsConfig(
        count=count,
        per_token=fields.integer("expert_used_count", maximum=MAX_EXPERTS),
        intermediate_size=fields.integer("expert_feed_forward_length", default),
        renormalize=fields.flag("expert_weights_norm", default=renormalize),
        shared_intermediate_size=fields.integer("expert_shared_feed_forward_length", 0, minimum=0)
        or None,
    )
