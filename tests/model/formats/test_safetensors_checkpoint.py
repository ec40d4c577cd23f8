"""Folders in Hugging Face layout become canonical tensors, strictly."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import (
    BOS,
    END,
    EOT,
    Tensors,
    edit_json,
    reference,
    reference_logprobs,
    rewrite_tensors,
)
from safetensors.torch import load_file, save_file

from model.errors import CheckpointError, ConfigError
from model.formats.loader import load_model
from model.formats.safetensors_checkpoint import SafetensorsCheckpoint

Copy = Callable[[str], Path]


def _assert_same_model(folder: Path, original: Path) -> None:
    ids = list(range(60, 120))
    expected = reference_logprobs(reference(original), ids)
    loaded = load_model(folder, device="cpu")
    with torch.inference_mode():
        found = loaded.model(torch.tensor(ids), torch.arange(len(ids))).log_softmax(-1)
    assert (found - expected).abs().max() < 1e-3


def _without_prefix(tensors: Tensors) -> Tensors:
    """As the oldest gpt2 files are: no prefix, and the masks among the weights."""
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    for layer in range(3):
        bare[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 8, 8)
        bare[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    return bare


def test_gpt2_without_prefix(checkpoint_copy: Copy, checkpoint: Callable[[str], Path]) -> None:
    """A gpt2 file without prefix and with mask buffers is the same model."""
    folder = checkpoint_copy("rand-gpt2")
    rewrite_tensors(folder, _without_prefix)
    _assert_same_model(folder, checkpoint("rand-gpt2"))


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_multimodal_gemma3(
    checkpoint_copy: Copy, checkpoint: Callable[[str], Path], prefix: str
) -> None:
    """The text part of a multimodal gemma3 is loaded and its other parts are left."""
    folder = checkpoint_copy("rand-gemma3")

    def edit(tensors: Tensors) -> Tensors:
        moved = {prefix + name.removeprefix("model."): t for name, t in tensors.items()}
        others = ("vision_tower.x.weight", "multi_modal_projector.mm_soft_emb_norm.weight")
        root = "" if prefix.startswith("language") else "model."
        return moved | {root + name: torch.ones(4) for name in others}

    rewrite_tensors(folder, edit)
    text = json.loads((folder / "config.json").read_text())
    outer = {"model_type": "gemma3", "text_config": text, "eos_token_id": [END, EOT]}
    (folder / "config.json").write_text(json.dumps(outer))
    (folder / "generation_config.json").unlink()
    _assert_same_model(folder, checkpoint("rand-gemma3"))
    assert SafetensorsCheckpoint(folder).eos_token_ids == {END, EOT}


def test_old_rotary_buffers(checkpoint_copy: Copy, checkpoint: Callable[[str], Path]) -> None:
    """Rotary frequencies that old llama files carry are not weights."""
    folder = checkpoint_copy("rand-llama-untied")
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    rewrite_tensors(folder, lambda tensors: tensors | buffer)
    _assert_same_model(folder, checkpoint("rand-llama-untied"))


def _shard(folder: Path) -> dict[str, str]:
    """Split the weights over two files and return the index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = list(tensors)
    weight_map = {}
    for i, part in enumerate((names[::2], names[1::2])):
        file = f"model-0000{i + 1}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    edit_json(folder / "model.safetensors.index.json", weight_map=weight_map)
    return weight_map


def test_sharded_weights(checkpoint_copy: Copy, checkpoint: Callable[[str], Path]) -> None:
    """Weights spread over files by an index are the same model."""
    folder = checkpoint_copy("rand-llama-untied")
    _shard(folder)
    _assert_same_model(folder, checkpoint("rand-llama-untied"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"novelty": "model-00001-of-00002.safetensors"}, "do not agree about novelty"),
        ({"model.norm.weight": "absent.safetensors"}, r"absent\.safetensors is missing"),
        ({"model.norm.weight": "../model.safetensors"}, "expected a file beside it"),
        ({"model.norm.weight": "/etc/passwd"}, "expected a file beside it"),
        ({"model.norm.weight": 5}, "places model.norm.weight in 5"),
    ],
)
def test_wrong_index(checkpoint_copy: Copy, change: dict[str, Any], reason: str) -> None:
    """An index that does not fit its files, or points out of the folder, is refused."""
    folder = checkpoint_copy("rand-llama-untied")
    weight_map = _shard(folder)
    edit_json(folder / "model.safetensors.index.json", weight_map=weight_map | change)
    with pytest.raises(CheckpointError, match=reason):
        SafetensorsCheckpoint(folder)


def _header(length: int, content: bytes = b"") -> bytes:
    return struct.pack("<Q", length) + content


HOSTILE = {
    "empty": b"",
    "absurd header": _header(2**60, b"{}"),
    "truncated header": _header(1000, b"{"),
    "no JSON": _header(8, b"x" * 8),
    "offsets past the end": _header(
        61, b'{"t":{"dtype":"F32","shape":[4],"data_offsets":[0,1099511]}}'.ljust(61)
    ),
    "absurd shape": _header(
        75, b'{"t":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}}'.ljust(75)
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file(checkpoint_copy: Copy, name: str) -> None:
    """A file that lies about itself ends in one sentence and takes little memory."""
    folder = checkpoint_copy("rand-llama-untied")
    (folder / "model.safetensors").write_bytes(HOSTILE[name])
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="is not a usable safetensors file") as caught:
        SafetensorsCheckpoint(folder)
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()
    assert "\n" not in str(caught.value)


def test_truncated_file(checkpoint_copy: Copy) -> None:
    """A file cut at half is refused."""
    folder = checkpoint_copy("rand-llama-untied")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(CheckpointError, match="is not a usable safetensors file"):
        load_model(folder)


def test_integer_weights(checkpoint_copy: Copy) -> None:
    """Weights in a type that needs unpacking are refused by name."""
    folder = checkpoint_copy("rand-llama-untied")
    name = "model.layers.0.mlp.up_proj.weight"
    rewrite_tensors(folder, lambda tensors: tensors | {name: tensors[name].to(torch.int8)})
    with pytest.raises(CheckpointError, match=rf"{name} has the type I8; supported are F64"):
        load_model(folder)


def test_pickled_weights(checkpoint_copy: Copy) -> None:
    """PyTorch's own format, which may run code, is refused with what to do."""
    folder = checkpoint_copy("rand-llama-untied")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="convert them to safetensors"):
        SafetensorsCheckpoint(folder)


def test_no_weights(checkpoint_copy: Copy) -> None:
    """A folder without weights is told what is looked for."""
    folder = checkpoint_copy("rand-llama-untied")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        SafetensorsCheckpoint(folder)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "is missing"),
        ("{", "is not readable JSON"),
        ("[" * 100_000, "is not readable JSON"),
        ("[]", "does not hold an object"),
        ("\x00\xff", "is not readable"),
    ],
)
def test_broken_config(checkpoint_copy: Copy, content: str | None, reason: str) -> None:
    """A configuration that is missing or is no JSON object is named."""
    folder = checkpoint_copy("rand-llama-untied")
    (folder / "config.json").unlink()
    if content is not None:
        (folder / "config.json").write_text(content, "latin-1")
    with pytest.raises(CheckpointError, match=rf"config\.json {reason}"):
        SafetensorsCheckpoint(folder)


def test_end_ids(checkpoint: Callable[[str], Path], checkpoint_copy: Copy) -> None:
    """End ids of config.json and generation_config.json are joined, be they one or several."""
    assert SafetensorsCheckpoint(checkpoint("script-gpt2")).eos_token_ids == {END, EOT}
    folder = checkpoint_copy("rand-llama-untied")
    edit_json(folder / "config.json", eos_token_id=[5, 6])
    edit_json(folder / "generation_config.json", eos_token_id=7)
    assert SafetensorsCheckpoint(folder).eos_token_ids == {5, 6, 7}


def test_default_params(checkpoint_copy: Copy) -> None:
    """Recommended sampling parameters are handed on; null recommends nothing."""
    folder = checkpoint_copy("rand-llama-untied")
    edit_json(folder / "generation_config.json", temperature=0.7, top_k=20, min_p=None)
    assert SafetensorsCheckpoint(folder).default_params == {"temperature": 0.7, "top_k": 20}


@pytest.mark.parametrize(
    ("name", "value"),
    [("top_p", float("nan")), ("temperature", -5), ("top_p", 7), ("repetition_penalty", 0),
     ("repetition_penalty", "high")],
)  # fmt: skip
def test_default_params_out_of_bounds_are_refused(
    checkpoint_copy: Copy, name: str, value: object
) -> None:
    """What a client could not ask for, a checkpoint cannot recommend; it is named at load."""
    folder = checkpoint_copy("rand-llama-untied")
    edit_json(folder / "generation_config.json", **{name: value})
    with pytest.raises(ConfigError, match=rf"generation_config.json: {name} must be"):
        _ = SafetensorsCheckpoint(folder).default_params


def test_chat_template(checkpoint_copy: Copy) -> None:
    """The template comes from its own file, else from the tokenizer's settings, else nowhere."""
    folder = checkpoint_copy("script-gpt2")
    messages = [{"role": "user", "content": "hi"}]

    def rendered() -> str | None:
        template = SafetensorsCheckpoint(folder).chat_template
        return template and "".join(segment.text for segment in template.render(messages))

    assert rendered() == "<|bos|>"
    (folder / "chat_template.jinja").unlink()
    assert rendered() is None
    settings = folder / "tokenizer_config.json"
    edit_json(settings, chat_template="{{ bos_token + messages[0].content }}")
    assert rendered() == "<|bos|>hi"
    both = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    edit_json(settings, chat_template=both)
    assert rendered() == "d"
    assert SafetensorsCheckpoint(folder).tokenizer.bos_token_id == BOS


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_file_is_not_kept_mapped(checkpoint_copy: Copy) -> None:
    """A loaded model holds its weights in memory of its own."""
    folder = checkpoint_copy("rand-llama-untied")
    loaded = load_model(folder)
    assert loaded.num_bytes > 0
    assert str(folder) not in Path("/proc/self/maps").read_text()
