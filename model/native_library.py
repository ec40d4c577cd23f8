"""NativeKernels: one built kernel library, loaded through ctypes, with its pool of threads.

Finds the library for the best instruction set this processor has, or the one KVSERVE_KERNELS
names, and says which it is and why. What the
operations mean is the business of its users. Python's lock is released in every call.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from model.native_abi import ABI_VERSION, SIGNATURES

InstructionSet = Literal["avx512", "avx2", "portable"]
INSTRUCTION_SETS: tuple[InstructionSet, ...] = get_args(InstructionSet)
"""Best first; each runs everywhere the one before it does."""

SWITCH = "KVSERVE_KERNELS"
"""Environment variable that forces an instruction set, or `off`."""

KERNELS_FOLDER = Path(__file__).parent / "kernels"


class NativeUnavailableError(RuntimeError):
    """The native kernels cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class NativeStatus:
    """Which path computes on the CPU, and why."""

    path: InstructionSet | Literal["torch"]
    reason: str
    threads: int


class NativeKernels:
    """A loaded kernel library and its thread pool.

    Args:
        instruction_set: Which library to load.
        threads: Size of the pool, the calling thread included; None takes as many as this
            process may use.

    Raises:
        NativeUnavailableError: The library was not built, is of another version, or this
            processor cannot run it.
    """

    def __init__(self, instruction_set: InstructionSet, *, threads: int | None = None) -> None:
        best = best_instruction_set()
        if INSTRUCTION_SETS.index(instruction_set) < INSTRUCTION_SETS.index(best):
            raise NativeUnavailableError(
                f"this processor cannot run {instruction_set}; the best it can run is {best}"
            )
        self.library = _load(instruction_set)
        self.instruction_set = instruction_set
        self.threads = usable_threads() if threads is None else threads
        self.pool: int | None = self.library.kv_pool_create(self.threads)

    def __del__(self) -> None:
        """Stop the threads."""
        pool = getattr(self, "pool", None)
        if pool:
            self.pool = None
            self.library.kv_pool_destroy(pool)


@functools.cache
def _load(instruction_set: str) -> ctypes.CDLL:
    """Load a library and declare its functions."""
    path = KERNELS_FOLDER / f"kernels_{instruction_set}.so"
    if not path.exists():
        raise NativeUnavailableError(
            f"{path.name} was not built; install with a C++17 compiler to have it"
        )
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(library, name)
            function.restype = result
            function.argtypes = arguments
    except (OSError, AttributeError) as error:
        raise NativeUnavailableError(f"{path.name} cannot be loaded: {error}") from error
    version = library.kv_abi_version()
    if version != ABI_VERSION:
        raise NativeUnavailableError(
            f"{path.name} has interface version {version}, but {ABI_VERSION} is needed; "
            "install again"
        )
    return library


@functools.cache
def best_instruction_set() -> InstructionSet:
    """Ask the processor, through the library that runs on any.

    Raises:
        NativeUnavailableError: Not even the portable library was built.
    """
    name = _load("portable").kv_best_instruction_set().decode()
    return next(known for known in INSTRUCTION_SETS if known == name)


def usable_threads() -> int:
    """The processors this process may use: its affinity, cut to the cgroup's quota."""
    if hasattr(os, "sched_getaffinity"):
        processors = len(os.sched_getaffinity(0))
    else:
        processors = os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, processors if quota is None else min(processors, int(quota + 0.5)))


def _cgroup_quota() -> float | None:
    """Processors granted by the cgroup (version 2, then 1); None is no limit."""
    root = Path("/sys/fs/cgroup")
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (root / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period)


def load_kernels(
    *, threads: int | None = None, environment: Mapping[str, str] = os.environ
) -> tuple[NativeKernels | None, NativeStatus]:
    """Load the best kernels this machine can run, or the ones the switch names.

    Args:
        threads: As for NativeKernels.
        environment: Where the switch is looked up.

    Returns:
        The kernels, or None when the torch path has to do; and what was chosen and why.

    Raises:
        NativeUnavailableError: The switch names kernels that cannot be had.
    """
    wanted = environment.get(SWITCH, "auto").strip().lower() or "auto"
    if wanted == "off":
        return None, NativeStatus("torch", f"{SWITCH}=off", threads or usable_threads())
    if wanted == "auto":
        return _load_best(threads)
    for known in INSTRUCTION_SETS:
        if wanted == known:
            kernels = NativeKernels(known, threads=threads)
            return kernels, NativeStatus(known, f"{SWITCH}={known}", kernels.threads)
    raise NativeUnavailableError(
        f"{SWITCH} is {wanted!r}; expected auto, off, {', '.join(INSTRUCTION_SETS)}"
    )


def _load_best(threads: int | None) -> tuple[NativeKernels | None, NativeStatus]:
    """Load the best library that was built; the reason names what is missing."""
    try:
        best = best_instruction_set()
    except NativeUnavailableError as error:
        return None, NativeStatus("torch", str(error), threads or usable_threads())
    missing = ""
    for known in INSTRUCTION_SETS[INSTRUCTION_SETS.index(best) :]:
        try:
            kernels = NativeKernels(known, threads=threads)
        except NativeUnavailableError as error:
            missing = f" ({error})"
            continue
        reason = f"the best this processor can run is {best}{missing}"
        return kernels, NativeStatus(known, reason, kernels.threads)
    return None, NativeStatus("torch", f"no kernel library{missing}", threads or usable_threads())
