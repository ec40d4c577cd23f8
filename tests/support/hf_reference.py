"""The same weights in transformers and in our Transformer, without a file in between."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from model.formats.hf_config import read_hf_config
from model.transformer import Transformer

GPT2_NAMES = {
    "transformer.": "model.",
    "wte.": "embed_tokens.",
    "wpe.": "position_embeddings.",
    ".h.": ".layers.",
    "ln_f.": "norm.",
    "ln_1.": "input_layernorm.",
    "ln_2.": "post_attention_layernorm.",
    "mlp.c_fc.": "mlp.up_proj.",
    "mlp.c_proj.": "mlp.down_proj.",
    "attn.c_proj.": "self_attn.o_proj.",
}


def canonical_tensors(reference: PreTrainedModel) -> dict[str, Tensor]:
    """The weights of a transformers model by the names our modules have."""
    tensors = dict(reference.state_dict())
    if reference.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    if reference.config.model_type == "gpt2":
        return _gpt2_tensors(tensors)
    if reference.config.model_type == "gemma3_text":
        return {name: t + 1 if "norm" in name else t for name, t in tensors.items()}
    return tensors


def _gpt2_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        matrix = ".h." in name and tensor.dim() == 2
        weight = tensor.T.contiguous() if matrix else tensor
        for theirs, ours in GPT2_NAMES.items():
            name = name.replace(theirs, ours)  # noqa: PLW2901 - renamed step by step
        if "attn.c_attn." in name:
            for part, piece in zip("qkv", weight.chunk(3), strict=True):
                result[name.replace("attn.c_attn.", f"self_attn.{part}_proj.")] = piece
        else:
            result[name] = weight
    return result


def ours_from(reference: PreTrainedModel, *, dtype: torch.dtype = torch.float32) -> Transformer:
    """Our Transformer with the configuration and the weights of a transformers model."""
    model = Transformer(read_hf_config(reference.config.to_dict()), dtype=dtype)
    model.load_state_dict(canonical_tensors(reference), strict=True)
    return model.eval()
