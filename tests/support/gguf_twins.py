"""GGUF twins of the tiny checkpoints: the same float32 weights as the conversion would write them.

Tensor names come from the `gguf` package's own table; the row order of a llama's queries and keys
and the turned-over matrices of gpt2 are the conversion's.
"""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import torch
from checkpoints import BOS, END, VOCAB_SIZE
from family_case import case_of
from safetensors.numpy import load_file
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

Array = npt.NDArray[np.float32]

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "gpt2": gguf.MODEL_ARCH.GPT2,
}


def write_twin(folder: Path, path: Path, *, quantize: bool = False) -> Path:
    """Write the checkpoint in `folder` as a GGUF file at `path`, which is returned.

    With `quantize` its matrices are in Q8_0 blocks; of the families in family_cases only.
    """
    config = AutoConfig.from_pretrained(folder)
    case = case_of(config)
    arch = case.arch if case else ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    _add_shape(writer, config)
    _add_vocabulary(writer, folder)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, weight in _folder_tensors(folder, config).items():
        written = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if quantize and weight.ndim > 1 and not written.endswith((".bias", "gate_inp.weight")):
            blocks = gguf.quantize(weight, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(written, blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(written, weight)
    if case:
        case.add_fields(writer, config)
    if (getattr(config, "rope_parameters", None) or {}).get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _frequency_factors(config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _folder_tensors(folder: Path, config: PretrainedConfig) -> dict[str, Array]:
    """A folder's tensors as the conversion writes them, under the names of transformers."""
    case = case_of(config)
    tensors: dict[str, Array] = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        if case:
            tensors |= dict(case.convert(name, weight, config))
        else:
            tensors[name] = _converted(name, weight, config)
    if case:
        tensors = case.stack(tensors)
    return {name: np.ascontiguousarray(weight) for name, weight in tensors.items()}


def _add_shape(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    if config.model_type == "gpt2":
        writer.add_feed_forward_length(config.n_inner or 4 * config.hidden_size)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if config.model_type in ("qwen3", "gemma3_text"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if config.model_type == "gemma3_text":
        writer.add_sliding_window(config.sliding_window)


def _add_vocabulary(writer: gguf.GGUFWriter, folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    special = {token["content"]: token["id"] for token in content["added_tokens"]}
    tokens = sorted(vocabulary | special, key=(vocabulary | special).__getitem__)
    assert len(tokens) == VOCAB_SIZE
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control if token in special else normal for token in tokens])
    writer.add_token_merges(["> >"])  # the format has no empty list; the folder has no merges
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(END)
    writer.add_add_bos_token(False)
    template = folder / "chat_template.jinja"
    if template.exists():
        writer.add_chat_template(template.read_text())


def _converted(name: str, weight: Array, config: PretrainedConfig) -> Array:
    """Do to one tensor what the conversion does."""
    if config.model_type == "gpt2" and weight.ndim == 2 and ".h." in name:
        return weight.T
    if config.model_type == "gemma3_text" and name.endswith("norm.weight"):
        return weight + 1
    heads = {
        "q_proj": config.num_attention_heads,
        "k_proj": getattr(config, "num_key_value_heads", None),
    }.get(name.split(".")[-2])
    if config.model_type == "llama" and heads:
        half = weight.shape[0] // heads // 2
        halves = weight.reshape(heads, 2, half, *weight.shape[1:])
        return halves.swapaxes(1, 2).reshape(weight.shape)
    return weight


def reference_from_gguf(path: Path, config: PretrainedConfig) -> PreTrainedModel:
    """The model of `config` in transformers with the unpacked weights of a GGUF file, float32."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    arch = ARCHITECTURES[config.model_type]
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    with no_init_weights():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="eager"
        )
    model.tie_weights()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            tensor = tensors[names.get_name(name, try_suffixes=(".weight", ".bias"))]
            weight = gguf.dequantize(tensor.data, tensor.tensor_type)
            parameter.copy_(torch.from_numpy(_restored(name, weight, config).copy()))
    return model.eval()


def _restored(name: str, weight: Array, config: PretrainedConfig) -> Array:
    """Undo to one tensor of a llama or a gemma3 what the conversion did."""
    if config.model_type == "gemma3_text" and name.endswith("norm.weight"):
        return weight - 1
    if config.model_type == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        of_head = weight.reshape(-1, config.head_dim, weight.shape[-1])
        return np.concatenate([of_head[:, 0::2], of_head[:, 1::2]], axis=1).reshape(weight.shape)
    return weight


def _frequency_factors(config: PretrainedConfig) -> Array:
    """By what llama3 scaling divides each frequency."""
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, device=torch.device("cpu"))
    size = config.hidden_size // config.num_attention_heads
    plain = config.rope_parameters["rope_theta"] ** -(torch.arange(0, size, 2) / size)
    return (plain / scaled).numpy()
