"""Which kernels are loaded, and what is said when they cannot be."""

from __future__ import annotations

import ctypes
from typing import get_args

import pytest

from model import native_abi, native_library
from model.native_library import (
    INSTRUCTION_SETS,
    NativeKernels,
    NativeUnavailableError,
    load_kernels,
)
from server.config import EngineConfig


@pytest.fixture(autouse=True)
def _built() -> None:
    try:
        native_library.supported_instruction_sets()
    except NativeUnavailableError as error:
        pytest.skip(str(error))


def test_the_best_is_chosen() -> None:
    """Unless told otherwise this processor's best library is loaded, and the reason says so."""
    kernels, status = load_kernels(threads=2)
    assert kernels is not None
    assert kernels.instruction_set == status.path
    assert status.path in native_library.supported_instruction_sets()
    assert "best this processor can run" in status.reason
    assert status.threads == kernels.threads == 2


def test_a_library_can_be_asked_for() -> None:
    """A name loads that library, and off means torch."""
    kernels, status = load_kernels("portable", threads=1)
    assert kernels is not None
    assert kernels.instruction_set == status.path == "portable"
    assert kernels.library.kv_instruction_set() == b"portable"
    kernels, status = load_kernels("off", threads=3)
    assert kernels is None
    assert (status.path, status.reason, status.threads) == ("torch", "kernels are off", 3)


def test_an_unknown_name_is_refused() -> None:
    """A misspelt name is an error that lists what is known."""
    with pytest.raises(NativeUnavailableError, match="'avx1024'; expected auto, off, amx, avx512"):
        load_kernels("avx1024", threads=1)


def test_what_a_processor_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A set that this processor cannot run is an error that names the best it can."""
    monkeypatch.setattr(native_library, "supported_instruction_sets", lambda: ("avx2", "portable"))
    for name in ("avx512", "avxvnni"):
        with pytest.raises(NativeUnavailableError, match=f"cannot run {name}; the best .* is avx2"):
            NativeKernels(name, threads=1)


def test_every_processor_runs_the_portable_set() -> None:
    """What a processor can run is told best first, and ends with what runs on any."""
    supported = native_library.supported_instruction_sets()
    assert supported[-1] == "portable"
    assert list(supported) == [known for known in INSTRUCTION_SETS if known in supported]


def test_options_name_every_set() -> None:
    """Each instruction set can be asked for by --kernels."""
    choices = get_args(EngineConfig.model_fields["kernels"].annotation)
    assert choices == ("auto", *INSTRUCTION_SETS, "off")


def test_pools_come_and_go() -> None:
    """Many pools of any size can be made and dropped."""
    for threads in (1, 2, 5):
        for _ in range(5):
            assert NativeKernels("portable", threads=threads).threads == threads


def test_a_struct_of_another_layout_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that lays a struct out otherwise than Python is named with what differs."""

    class Longer(native_abi.BatchStruct):
        """kv_batch: with one field more than the library knows."""

        _fields_ = (("novelty", ctypes.c_int64),)

    structs = [Longer if s is native_abi.BatchStruct else s for s in native_abi.STRUCTS]
    monkeypatch.setattr(native_abi, "STRUCTS", tuple(structs))
    native_library._load.cache_clear()
    with pytest.raises(NativeUnavailableError, match="the size of kv_batch at 40 bytes, but 48"):
        NativeKernels("portable", threads=1)


def test_a_struct_too_few_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library with a struct that Python does not know is of another version."""
    monkeypatch.setattr(native_abi, "STRUCTS", native_abi.STRUCTS[:-1])
    native_library._load.cache_clear()
    with pytest.raises(NativeUnavailableError, match="describes its structs by"):
        NativeKernels("portable", threads=1)
