"""gpt-oss."""

from collections.abc import Iterator

import gguf
from expert_tensors import add_expert_fields
from family_case import Array, FamilyCase, Shape
from transformers import GptOssConfig, PretrainedConfig


def make(shape: Shape) -> dict[str, PretrainedConfig]:
    return {
        "rand-gpt-oss": GptOssConfig(
            **shape | {"intermediate_size": 64},
            head_dim=32,
            sliding_window=16,
            num_local_experts=4,
            num_experts_per_tok=2,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 1000.0,
                "factor": 8.0,
                "beta_fast": 8.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 32,
            },
        )
    }


def add_fields(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    add_expert_fields(writer, config)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_sliding_window(config.sliding_window)
    rope = config.rope_parameters
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
    writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])


def convert(name: str, weight: Array, config: PretrainedConfig) -> Iterator[tuple[str, Array]]:
    """Take gate and up apart, and turn the experts' matrices over."""
    del config
    if ".experts." not in name:
        yield name + ".weight" if name.endswith("sinks") else name, weight
        return
    is_bias = name.endswith("_bias")
    base, kind = name.removesuffix("_bias"), "bias" if is_bias else "weight"
    turned = weight if is_bias else weight.swapaxes(1, 2)
    if "gate_up_proj" in base:
        for offset, part in enumerate(("gate_proj", "up_proj")):
            yield f"{base.replace('gate_up_proj', part)}.{kind}", turned[:, offset::2]
    else:
        yield f"{base}.{kind}", turned


CASE = FamilyCase(make=make, arch=gguf.MODEL_ARCH.GPT_OSS, add_fields=add_fields, convert=convert)
