"""Which kernels are loaded, and what is said when they cannot be."""

from __future__ import annotations

import pytest

from model import native_library
from model.native_library import (
    INSTRUCTION_SETS,
    SWITCH,
    NativeKernels,
    NativeUnavailableError,
    load_kernels,
    usable_threads,
)


@pytest.fixture(autouse=True)
def _built() -> None:
    try:
        native_library.best_instruction_set()
    except NativeUnavailableError as error:
        pytest.skip(str(error))


def test_the_best_is_chosen() -> None:
    """Without a switch the best library of this processor is loaded, and the reason says so."""
    kernels, status = load_kernels(threads=2, environment={})
    assert kernels is not None
    assert kernels.instruction_set == status.path
    assert INSTRUCTION_SETS.index(status.path) >= INSTRUCTION_SETS.index(
        native_library.best_instruction_set()
    )
    assert "best this processor can run" in status.reason
    assert status.threads == kernels.threads == 2


def test_the_switch_forces_a_library() -> None:
    """KVSERVE_KERNELS names the library to load; off means torch."""
    kernels, status = load_kernels(environment={SWITCH: "Portable"})
    assert kernels is not None
    assert kernels.instruction_set == status.path == "portable"
    assert kernels.library.kv_instruction_set() == b"portable"
    kernels, status = load_kernels(environment={SWITCH: "off"})
    assert kernels is None
    assert (status.path, status.reason) == ("torch", f"{SWITCH}=off")


def test_an_unknown_switch_is_refused() -> None:
    """A misspelt switch is an error that lists what is known."""
    with pytest.raises(NativeUnavailableError, match="'avx1024'; expected auto, off, avx512, avx2"):
        load_kernels(environment={SWITCH: "avx1024"})


def test_threads_follow_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cgroup's quota limits the threads, rounded, and never below one."""
    for quota, most in ((None, 64), (0.2, 1), (1.6, 2)):
        monkeypatch.setattr(native_library, "_cgroup_quota", lambda quota=quota: quota)
        assert 1 <= usable_threads() <= most


def test_pools_come_and_go() -> None:
    """Many pools of any size can be made and dropped."""
    for threads in (1, 2, 5):
        for _ in range(5):
            assert NativeKernels("portable", threads=threads).threads == threads
