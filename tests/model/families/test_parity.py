"""Every family that has a case in family_cases against transformers, through its files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from checkpoints import CASE_CONFIGS, reference, reference_logprobs, rewrite_tensors
from family_case import case_of
from gguf_twins import write_twin
from paged import PagedCache
from torch import Tensor
from transformers import AutoConfig

from model.formats.loader import LoadedModel, load_model
from model.native_library import (
    INSTRUCTION_SETS,
    InstructionSet,
    NativeKernels,
    NativeUnavailableError,
)

TOLERANCE = 1e-3
TWIN_TOLERANCE = 1e-2
WITH_TWIN = [
    name
    for name, config in CASE_CONFIGS.items()
    if (case := case_of(config)) and case.has_twin(config)
]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@cache
def kernels(instruction_set: InstructionSet, threads: int) -> NativeKernels:
    return NativeKernels(instruction_set, threads=threads)


@pytest.fixture(params=INSTRUCTION_SETS)
def instruction_set(request: pytest.FixtureRequest) -> InstructionSet:
    """Each instruction set this processor can run."""
    name: InstructionSet = request.param
    try:
        kernels(name, 1)
    except NativeUnavailableError as error:
        pytest.skip(str(error))
    return name


def token_ids(vocab_size: int, *, seed: int = 7) -> list[int]:
    """More tokens than any window and any original context of a case."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab_size, (80,), generator=generator).tolist()


@cache
def expected(folder: Path) -> tuple[list[int], Tensor]:
    model = reference(folder)
    ids = token_ids(model.config.vocab_size)
    return ids, reference_logprobs(model, ids)


def through_cache(loaded: LoadedModel, ids: list[int], *, chunk: int) -> Tensor:
    model = loaded.native or loaded.model
    paged = PagedCache.for_model(model, dtype=loaded.dtype)
    pieces = [
        paged.step(model, {"a": ids[start : start + chunk]})["a"]
        for start in range(0, len(ids), chunk)
    ]
    return torch.cat(pieces)


def assert_close(found: Tensor, wanted: Tensor, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", CASE_CONFIGS)
def test_torch_equals_transformers(name: str, checkpoint: Callable[[str], Path]) -> None:
    """Whole and in chunks through the cache, each log-probability is that of transformers."""
    ids, wanted = expected(checkpoint(name))
    loaded = load_model(checkpoint(name), device="cpu")
    with torch.inference_mode():
        whole = loaded.model(torch.tensor(ids), torch.arange(len(ids)))
        assert_close(whole.log_softmax(-1), wanted)
        for chunk in (1, 7, 64):
            assert_close(through_cache(loaded, ids, chunk=chunk), wanted)


@pytest.mark.parametrize("name", CASE_CONFIGS)
def test_kernels_equal_transformers(
    name: str, instruction_set: InstructionSet, checkpoint: Callable[[str], Path]
) -> None:
    """The native kernels give each position the log-probabilities of transformers."""
    ids, wanted = expected(checkpoint(name))
    loaded = load_model(checkpoint(name), device="cpu", kernels=kernels(instruction_set, 2))
    assert loaded.native is not None
    for chunk in (1, 7, 64):
        assert_close(through_cache(loaded, ids, chunk=chunk), wanted)


@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
@pytest.mark.parametrize("name", CASE_CONFIGS)
def test_kernels_repeat_every_bit(
    name: str, quantize: str | None, checkpoint: Callable[[str], Path]
) -> None:
    """A request has the same bits alone and in company, in any chunks, with any threads."""
    best = next(known for known in INSTRUCTION_SETS if _runs(known))
    ids = expected(checkpoint(name))[0]
    alone = load_model(checkpoint(name), device="cpu", kernels=kernels(best, 1), quantize=quantize)
    both = load_model(checkpoint(name), device="cpu", kernels=kernels(best, 2), quantize=quantize)
    wanted = through_cache(alone, ids, chunk=len(ids))
    assert torch.equal(through_cache(both, ids, chunk=7), wanted)
    paged = PagedCache.for_model(both.native, block_size=32)
    others = token_ids(both.config.vocab_size, seed=8)
    paged.step(both.native, {"b": others[:33], "a": ids[:40], "c": others[5:6]})
    found = paged.step(both.native, {"c": others[6:7], "a": ids[40:], "b": others[33:60]})["a"]
    assert torch.equal(found, wanted[40:])


def _runs(name: InstructionSet) -> bool:
    try:
        kernels(name, 1)
    except NativeUnavailableError:
        return False
    return True


@pytest.mark.parametrize("name", WITH_TWIN)
def test_gguf_twin_equals_transformers(
    name: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """The same model as a GGUF file is the same, whole and in chunks."""
    ids, wanted = expected(checkpoint(name))
    path = write_twin(checkpoint(name), tmp_path / "twin.gguf")
    loaded = load_model(path, device="cpu")
    case = case_of(CASE_CONFIGS[name])
    assert case is not None
    wanted_name = case.gguf_architecture or CASE_CONFIGS[name].model_type
    assert loaded.config.architecture == wanted_name
    for chunk in (7, 80):
        assert_close(through_cache(loaded, ids, chunk=chunk), wanted)


@pytest.mark.parametrize("name", WITH_TWIN)
def test_quantised_twin_equals_its_own_weights(
    name: str, checkpoint_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    """A GGUF file in Q8_0 blocks is what transformers makes of the unpacked blocks."""
    folder = checkpoint_copy(name)
    path = write_twin(folder, tmp_path / "twin.gguf", quantize=True)
    rewrite_tensors(folder, lambda tensors: {k: _rounded(k, t) for k, t in tensors.items()})
    model = reference(folder)
    ids = token_ids(AutoConfig.from_pretrained(folder).vocab_size)
    loaded = load_model(path, device="cpu", dtype="float32")
    found = through_cache(loaded, ids, chunk=7)
    assert_close(found, reference_logprobs(model, ids), TWIN_TOLERANCE)


def _rounded(name: str, tensor: Tensor) -> Tensor:
    """Round a matrix as Q8_0 blocks hold it; routers are not rounded."""
    kept = (".gate.weight", "router.weight", "_gate.weight", "bias")
    if tensor.ndim < 2 or name.endswith(kept):
        return tensor
    is_turned = tensor.ndim == 3  # experts in columns
    array = (tensor.mT if is_turned else tensor).contiguous().numpy()
    blocks = gguf.quantize(array, gguf.GGMLQuantizationType.Q8_0)
    back = torch.from_numpy(
        np.ascontiguousarray(gguf.dequantize(blocks, gguf.GGMLQuantizationType.Q8_0))
    )
    return back.mT.contiguous() if is_turned else back
