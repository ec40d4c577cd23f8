"""GGUF files become the model they were converted from."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
from checkpoints import END, reference, reference_logprobs
from gguf_twins import reference_from_gguf, write_twin
from transformers import Gemma3TextConfig, LlamaConfig, PretrainedConfig

from model.errors import CheckpointError, ModelError
from model.families.tensor_parts import TensorPart
from model.formats.gguf_checkpoint import GGUFCheckpoint, GGUFSource
from model.formats.gguf_file import SUPPORTED_TYPES, GGUFFile, row_bytes
from model.formats.loader import LoadedModel, load_model

Checkpoints = Callable[[str], Path]
Packed = npt.NDArray[np.uint8]


def _write(path: Path, blocks: Packed, qtype: gguf.GGMLQuantizationType) -> GGUFSource:
    """Put rows of packed blocks into a file and return them as a source."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("matrix", blocks, raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile.open(path)
    tensor = file.tensors["matrix"]
    return GGUFSource(file, tensor, TensorPart(name="matrix"))


def _random_blocks(qtype: gguf.GGMLQuantizationType, rows: int, columns: int) -> Packed:
    """Rows of blocks: the package's own packing, or random bits with finite scales."""
    generator = np.random.default_rng(5)
    values = generator.standard_normal((rows, columns)).astype(np.float32)
    if not qtype.name.endswith("_K") and not qtype.name.startswith("IQ") and qtype.name != "NVFP4":
        packed: Packed = gguf.quantize(values, qtype).view(np.uint8).reshape(rows, -1)
        return packed
    bits = generator.integers(0, 256, (rows, row_bytes(qtype, columns)), dtype=np.uint8)
    blocks = bits.reshape(-1, gguf.GGML_QUANT_SIZES[qtype][1])
    scales = generator.standard_normal((len(blocks), 2)).astype(np.float16).view(np.uint8)
    if qtype.name in ("Q6_K", "Q3_K"):
        blocks[:, -2:] = scales[:, :2]
    elif qtype.name == "Q2_K":
        blocks[:, -4:] = scales
    elif qtype.name == "IQ1_M":  # the scale is spread over the high bits of four words
        blocks[:, -7::2] &= 0x0F
        blocks[:, -1] |= 0x30
    else:
        blocks[:, : 2 if qtype.name.startswith("IQ") else 4] = scales[
            :, : 2 if qtype.name.startswith("IQ") else 4
        ]
    return bits


@pytest.mark.parametrize("qtype", SUPPORTED_TYPES, ids=lambda qtype: qtype.name)
def test_block_type(qtype: gguf.GGMLQuantizationType, tmp_path: Path) -> None:
    """Every supported type unpacks to what the package unpacks, rows picked in any order."""
    blocks = _random_blocks(qtype, 70, 512)
    source = _write(tmp_path / "blocks.gguf", blocks, qtype)
    expected = gguf.dequantize(blocks, qtype)

    assert source.stored_as == qtype.name
    raw = source.raw_blocks()
    if qtype.name in ("F32", "F16", "BF16"):
        assert raw is None
    else:
        assert np.array_equal(raw.numpy(), blocks)
    assert np.array_equal(source.load(torch.float32).numpy(), expected)
    rounded = torch.from_numpy(expected).to(torch.bfloat16)
    assert torch.equal(source.load(torch.bfloat16), rounded)

    order = np.random.default_rng(6).permutation(70)[:40]
    picked = GGUFSource(source.file, source.tensor, TensorPart(name="picked", rows=order))
    assert np.array_equal(picked.load(torch.float32).numpy(), expected[order])


HALF, ONE = struct.pack("<e", 0.5), struct.pack("<e", 1.0)
NIBBLES = bytes(low | (15 - low) << 4 for low in range(16))
"""Byte i holds i and, in its upper half, 15 - i."""
UP_AND_DOWN = [*range(16), *range(15, -1, -1)]
FIFTH_BITS = struct.pack("<I", 0xFFFF0000)
"""The upper sixteen elements get another 16."""
K_SCALES = bytes([1, 2, 3, 4, 2, 2, 2, 2, 0x25, 0x26, 0x27, 0x28])
"""Scale j + 1 and minimum 2 for each of the eight groups of 32."""

BY_HAND = {
    "F32": (struct.pack("<2f", 1.5, -2), [1.5, -2.0]),
    "F16": (struct.pack("<2e", 1.5, -2), [1.5, -2.0]),
    "BF16": (bytes([0xC0, 0x3F, 0x00, 0xC0]), [1.5, -2.0]),
    "Q8_0": (HALF + struct.pack("<32b", *range(-16, 16)), [i / 2 for i in range(-16, 16)]),
    "Q4_0": (HALF + NIBBLES, [(i - 8) / 2 for i in UP_AND_DOWN]),
    "Q4_1": (HALF + ONE + NIBBLES, [i / 2 + 1 for i in UP_AND_DOWN]),
    "Q5_0": (
        HALF + FIFTH_BITS + NIBBLES,
        [(i - 16) / 2 for i in range(16)] + [i / 2 for i in range(15, -1, -1)],
    ),
    "Q5_1": (
        HALF + ONE + FIFTH_BITS + NIBBLES,
        [i / 2 + 1 for i in range(16)] + [(i + 16) / 2 + 1 for i in range(15, -1, -1)],
    ),
    # Bytes 0x31 give 1 to the even groups and 3 to the odd ones; minima are 0.5 x 2.
    "Q4_K": (
        ONE + HALF + K_SCALES + bytes([0x31] * 128),
        [(j + 1) * (1, 3)[j % 2] - 1 for j in range(8) for _ in range(32)],
    ),
    # Bit 0 of each high byte adds 16 to the first group, bit 7 to the last.
    "Q5_K": (
        ONE + HALF + K_SCALES + bytes([0x81] * 32) + bytes([0x31] * 128),
        [
            (j + 1) * ((1, 3)[j % 2] + (16 if j in (0, 7) else 0)) - 1
            for j in range(8)
            for _ in range(32)
        ],
    ),
    # Low nibbles 1 and 2, high pairs 0 to 3: 1, 17, 34 and 50 for the four groups of each half.
    "Q6_K": (
        bytes([0x21] * 128) + bytes([0b11100100] * 64) + bytes(range(1, 17)) + ONE,
        [(g + 1) * ((1, 17, 34, 50)[g % 8 // 2] - 32) for g in range(16) for _ in range(16)],
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_block_by_hand(name: str, tmp_path: Path) -> None:
    """A block written out bit by bit has the values that the format's definition gives it."""
    qtype = gguf.GGMLQuantizationType[name]
    content, expected = BY_HAND[name]
    blocks = np.frombuffer(content, np.uint8).reshape(1, -1)
    source = _write(tmp_path / "block.gguf", blocks, qtype)
    assert source.load(torch.float32)[0].tolist() == expected


TWINS = (
    "rand-llama-tied",
    "rand-llama-untied",
    "rand-llama-rope-llama3",
    "rand-qwen2",
    "rand-qwen3",
    "rand-gemma3",
    "rand-gpt2",
    "script-gpt2",
)


@pytest.mark.parametrize("name", TWINS)
def test_twin(checkpoint: Checkpoints, tmp_path: Path, name: str) -> None:
    """A float32 conversion gives every log-probability that transformers gives the original."""
    folder = checkpoint(name)
    length = 120 if name == "rand-gpt2" else 200
    ids = torch.randint(256, (length,), generator=torch.Generator().manual_seed(3))
    expected = reference_logprobs(reference(folder), ids.tolist())

    loaded = load_model(write_twin(folder, tmp_path / "twin.gguf"), device="cpu")
    with torch.inference_mode():
        found = loaded.model(ids, torch.arange(length)).log_softmax(-1)

    assert (found - expected).abs().max() < 1e-3
    assert loaded.name == "twin"
    assert loaded.eos_token_ids == {END}


def _edited(source: Path, target: Path, edit: Callable[[gguf.GGUFWriter], None]) -> Path:
    """Copy a file with the package's reader and writer and let `edit` add to it."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            sub_type = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=sub_type)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    edit(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


@pytest.fixture
def twin(checkpoint: Checkpoints, tmp_path: Path) -> Path:
    """A llama in float32."""
    return write_twin(checkpoint("rand-llama-untied"), tmp_path / "twin.gguf")


def test_end_ids_and_defaults(twin: Path, tmp_path: Path) -> None:
    """End-of-turn ids join the end of text, and recommended sampling is handed on."""

    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_eot_token_id(7)
        writer.add_uint32("tokenizer.ggml.eom_token_id", 8)
        writer.add_float32("general.sampling.temp", 0.5)
        writer.add_int32("general.sampling.top_k", 20)

    edited = GGUFCheckpoint(_edited(twin, tmp_path / "edited.gguf", edit))
    assert edited.eos_token_ids == {END, 7, 8}
    assert edited.default_params == {"temperature": 0.5, "top_k": 20}


def test_surplus_tensor(twin: Path, tmp_path: Path) -> None:
    """A tensor that the architecture does not know is named, not ignored."""

    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("blk.0.attn_q_norm.weight", np.zeros(16, np.float32))
        writer.add_tensor("blk.1.novelty.weight", np.zeros(64, np.float32))

    edited = _edited(twin, tmp_path / "edited.gguf", edit)
    match = r"surplus model\.layers\.0\.self_attn\.q_norm\.weight, blk\.1\.novelty\.weight"
    with pytest.raises(CheckpointError, match=match):
        load_model(edited)


def test_rope_factors_of_another_size(twin: Path, tmp_path: Path) -> None:
    """Frequency factors that are no vector of a head's size are refused by name."""
    for shape in ((4, 4), (5000,), (9,)):

        def edit(writer: gguf.GGUFWriter, shape: tuple[int, ...] = shape) -> None:
            writer.add_tensor("rope_freqs.weight", np.ones(shape, np.float32))

        edited = _edited(twin, tmp_path / "edited.gguf", edit)
        with pytest.raises(ModelError, match=r"rope_freqs\.weight"):
            GGUFCheckpoint(edited)


def test_split_file(twin: Path, tmp_path: Path) -> None:
    """One part of a split model is refused with what to do."""
    edited = _edited(twin, tmp_path / "e.gguf", lambda writer: writer.add_uint16("split.count", 3))
    with pytest.raises(CheckpointError, match="is one of 3 parts; they must lie side by side"):
        GGUFCheckpoint(edited)


def test_mutated_model(twin: Path, tmp_path: Path) -> None:
    """Whatever random bytes do to the header, loading succeeds or ends in a ModelError."""
    dice = random.Random(11)
    path, refused = tmp_path / "mutated.gguf", 0
    for _ in range(60):
        content = bytearray(twin.read_bytes())
        for _ in range(dice.randint(1, 3)):
            content[dice.randrange(1200)] = dice.choice([0, 1, 9, 127, 255])
        path.write_bytes(content)
        try:
            load_model(path)
        except ModelError:
            refused += 1
    assert refused > 10


TEXT = "The capital of France is Paris, and two and two are four. " * 10


def _check_real_model(path: Path, config: PretrainedConfig, *, num_tokens: int) -> LoadedModel:
    """Compare with transformers on the same unpacked weights, and expect the text to be likely."""
    loaded = load_model(path, dtype="float32", device="cpu")
    ids = loaded.tokenizer.encode(TEXT)[:num_tokens]
    expected = reference_logprobs(reference_from_gguf(path, config), ids)
    with torch.inference_mode():
        found = loaded.model(torch.tensor(ids), torch.arange(len(ids))).log_softmax(-1)
    assert (found - expected).abs().max() < 1e-2
    assert found[range(len(ids) - 1), ids[1:]].mean() > -4
    return loaded


@pytest.mark.slow
@pytest.mark.smollm2
def test_smollm2(smollm2_gguf: Path) -> None:
    """SmolLM2 gives a hundred tokens the log-probabilities that transformers gives them."""
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_theta=100000.0,
        tie_word_embeddings=True,
    )
    loaded = _check_real_model(smollm2_gguf, config, num_tokens=100)
    assert loaded.config.tie_word_embeddings
    assert loaded.eos_token_ids == {2}
    assert loaded.chat_template is not None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_gemma3(gemma3_gguf: Path) -> None:
    """Gemma 3, packed in four block types, agrees with transformers on the same weights."""
    stored = {source.stored_as for source in GGUFCheckpoint(gemma3_gguf).sources()}
    assert stored == {"F32", "Q5_0", "Q8_0", "Q4_K", "Q6_K"}
    config = Gemma3TextConfig(
        vocab_size=262144,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=18,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        query_pre_attn_scalar=256,
        sliding_window=512,
        max_position_embeddings=32768,
    )
    loaded = _check_real_model(gemma3_gguf, config, num_tokens=40)
    assert loaded.eos_token_ids == {1}
    assert loaded.chat_template is None
