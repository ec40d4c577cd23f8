"""What a model would take in memory, against what it takes once it is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gguf_twins import write_twin

from model.formats.footprint import measure_footprint
from model.formats.loader import load_model, open_checkpoint
from model.native_library import NativeKernels, load_kernels


@pytest.fixture
def kernels() -> NativeKernels:
    """The best kernels of this machine."""
    found, status = load_kernels(threads=1)
    if found is None:
        pytest.skip(status.reason)
    return found


@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
@pytest.mark.parametrize("name", ["rand-llama-tied", "rand-gpt-oss", "rand-gpt2"])
def test_the_measure_is_what_loading_takes(
    name: str, quantize: str | None, checkpoint: Callable[[str], Path], kernels: NativeKernels
) -> None:
    """The bytes and the number of parameters are those of the loaded model."""
    path = checkpoint(name)
    found = measure_footprint(
        open_checkpoint(path), kernels=kernels, dtype="auto", quantize=quantize
    )
    loaded = load_model(path, device="cpu", kernels=kernels, quantize=quantize)
    assert found.weights_bytes == loaded.num_bytes
    assert found.num_parameters == loaded.num_parameters
    assert found.lacking is None


def test_packed_blocks_are_measured(
    checkpoint: Callable[[str], Path], kernels: NativeKernels, tmp_path: Path
) -> None:
    """Quantised blocks of a GGUF file keep their size, or become floats without kernels."""
    path = write_twin(checkpoint("rand-granite"), tmp_path / "t.gguf", quantize=True)
    packed = measure_footprint(open_checkpoint(path), kernels=kernels, dtype="auto", quantize=None)
    assert packed.weights_bytes == load_model(path, device="cpu", kernels=kernels).num_bytes
    floats = measure_footprint(open_checkpoint(path), kernels=None, dtype="auto", quantize=None)
    assert floats.weights_bytes == load_model(path, device="cpu").num_bytes
