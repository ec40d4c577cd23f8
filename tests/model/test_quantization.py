"""PackedLinear holds the values it was given: float formats, rounding, and every GGUF type."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize
from torch import Tensor

from model.native_library import NativeKernels, NativeUnavailableError
from model.quantization import FORMATS, PackedLinear, WeightFormat


@pytest.fixture(scope="module")
def kernels() -> NativeKernels:
    """The kernels that run anywhere: packing is the same code for all."""
    try:
        return NativeKernels("portable", threads=2)
    except NativeUnavailableError as error:
        pytest.skip(str(error))


def relative_error(got: Tensor, exact: Tensor) -> float:
    """The Frobenius norm of the difference over that of the exact matrix."""
    return float((got.double() - exact.double()).norm() / exact.double().norm())


def random_blocks(qtype: GGMLQuantizationType, rows: int, inputs: int) -> np.ndarray:
    """Blocks of random bytes whose float16 scales are ordinary numbers."""
    block, size = GGML_QUANT_SIZES[qtype]
    rng = np.random.default_rng(int(qtype))
    raw = rng.integers(0, 256, (rows, inputs // block, size), dtype=np.uint8)
    scales = rng.uniform(0.001, 0.02, (rows, inputs // block, 2)).astype(np.float16)
    at = {"Q6_K": size - 2, "Q2_K": size - 4, "Q3_K": size - 2}.get(qtype.name, 0)
    if qtype.name == "MXFP4":
        raw[..., 0] = rng.integers(115, 135, raw.shape[:2])
        return raw.reshape(rows, -1)
    one_scale = qtype.name in ("Q4_0", "Q5_0", "Q8_0", "Q6_K", "Q3_K")
    count = 1 if one_scale or qtype.name.startswith("IQ") else 2
    raw[..., at : at + 2 * count] = scales[..., :count].copy().view(np.uint8)
    return raw.reshape(rows, -1)


EXACT = ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "IQ4_NL", "MXFP4"]
CLOSE = {
    "Q4_K": 4e-4,
    "IQ4_XS": 4e-4,
    "IQ3_S": 8e-3,
    "Q5_1": 8e-3,
    "Q5_K": 8e-3,
    "Q6_K": 8e-3,
    "Q3_K": 8e-3,
    "Q2_K": 8e-3,
}
SIZES = {"Q4_0": 1.01, "Q4_1": 1.01, "Q8_0": 1.01, "Q4_K": 1.2}


@pytest.mark.parametrize("name", [*EXACT, *CLOSE])
def test_gguf_blocks_keep_their_values(kernels: NativeKernels, name: str) -> None:
    """Some types are exact to the bit, the others lose far less than quantising them did."""
    qtype = GGMLQuantizationType[name]
    raw = random_blocks(qtype, 37, 512)
    exact = torch.from_numpy(dequantize(raw, qtype))
    packed = PackedLinear.from_gguf(
        torch.from_numpy(raw), qtype=qtype, shape=(37, 512), kernels=kernels
    )
    if name in EXACT:
        assert torch.equal(packed.dequantize(), exact)
    else:
        assert relative_error(packed.dequantize(), exact) < CLOSE[name]


@pytest.mark.parametrize("name", SIZES)
def test_packed_size(kernels: NativeKernels, name: str) -> None:
    """A packed GGUF matrix takes no more than its blocks, or a fifth more for Q4_K."""
    qtype = GGMLQuantizationType[name]
    raw = random_blocks(qtype, 64, 1024)
    packed = PackedLinear.from_gguf(
        torch.from_numpy(raw), qtype=qtype, shape=(64, 1024), kernels=kernels
    )
    assert packed.nbytes <= SIZES[name] * raw.nbytes


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_gguf_floats(kernels: NativeKernels, name: str) -> None:
    """Float tensors keep float32, or become bfloat16."""
    qtype = GGMLQuantizationType[name]
    values = np.random.default_rng(0).normal(size=(20, 48)).astype(np.float32)
    raw = quantize(values, qtype).view(np.uint8)
    packed = PackedLinear.from_gguf(
        torch.from_numpy(raw), qtype=qtype, shape=(20, 48), kernels=kernels
    )
    expected = torch.from_numpy(dequantize(raw, qtype))
    if name != "F32":
        expected = expected.bfloat16().float()
    assert torch.equal(packed.dequantize(), expected)


def test_a_hand_computed_block(kernels: NativeKernels) -> None:
    """Q4_0, scale 0.5, bytes 0x0f: (15 - 8) / 2 in the first half and (0 - 8) / 2 in the second."""
    raw = np.concatenate([np.array([0.5], np.float16).view(np.uint8), np.full(16, 0x0F, np.uint8)])
    packed = PackedLinear.from_gguf(
        torch.from_numpy(raw), qtype=GGMLQuantizationType.Q4_0, shape=(1, 32), kernels=kernels
    )
    assert packed.dequantize().tolist() == [[3.5] * 16 + [-4.0] * 16]


@pytest.mark.parametrize("shape", [(16, 32), (37, 100), (1, 1), (5000, 33)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weight_format", FORMATS)
def test_floats_are_rounded_to_the_nearest(
    kernels: NativeKernels, weight_format: WeightFormat, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    """Float formats round like torch; integer formats stay within their step."""
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    packed = PackedLinear.from_float(weight, weight_format=weight_format, kernels=kernels)
    got = packed.dequantize()
    assert packed.shape == shape
    if weight_format == "float32":
        assert torch.equal(got, weight.float())
    elif weight_format == "bfloat16":
        assert torch.equal(got, weight.bfloat16().float())
    else:
        limit = {"int8": 0.008, "int4": 0.11, "int4_affine": 0.09}[weight_format]
        assert relative_error(got, weight.float()) < limit


def test_rows_are_gathered_and_scaled(kernels: NativeKernels) -> None:
    """Any rows in any order, times a factor; an id outside is refused."""
    weight = torch.randn(50, 40)
    packed = PackedLinear.from_float(weight, weight_format="float32", kernels=kernels)
    ids = torch.tensor([49, 0, 7, 7])
    assert torch.equal(packed.rows(ids, scale=2.0), weight[ids] * 2.0)
    for wrong in (-1, 50):
        with pytest.raises(IndexError, match=r"0\.\.49"):
            packed.rows(torch.tensor([wrong]))


def test_wrong_shapes_are_refused(kernels: NativeKernels) -> None:
    """A vector is no matrix, and bytes must make up the shape."""
    with pytest.raises(ValueError, match="1 axes"):
        PackedLinear.from_float(torch.ones(4), weight_format="int8", kernels=kernels)
    with pytest.raises(ValueError, match="Q8_0 data has 34 bytes a row; expected 68"):
        PackedLinear.from_gguf(
            torch.zeros(34, dtype=torch.uint8), qtype=8, shape=(1, 64), kernels=kernels
        )
