"""NativeKernels: one built kernel library, loaded through ctypes, with its pool of threads.

Finds the library for the best instruction set this processor has, or the one that is named, and
says which it is and why. What the operations mean is the business of its users. Python's lock is
released in every call.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from model.errors import ModelError
from model.native_abi import ABI_VERSION, SIGNATURES, struct_layouts
from model.packed_memory import PackedMemory

InstructionSet = Literal["amx", "avx512", "avxvnni", "avx2", "i8mm", "dotprod", "portable"]
INSTRUCTION_SETS: tuple[InstructionSet, ...] = get_args(InstructionSet)
"""Best first, those of x86 before those of ARM."""

KERNELS_FOLDER = Path(__file__).parent / "kernels"


class NativeUnavailableError(ModelError):
    """The native kernels cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class NativeStatus:
    """Which path computes on the CPU, and why."""

    path: InstructionSet | Literal["torch"]
    reason: str
    threads: int


class NativeKernels:
    """A loaded kernel library, its thread pool, and the memory of what it packs.

    Args:
        instruction_set: Which library to load.
        threads: Size of the pool, the calling thread included.

    Raises:
        NativeUnavailableError: The library was not built, is of another version, or this
            processor cannot run it.
    """

    def __init__(self, instruction_set: InstructionSet, *, threads: int) -> None:
        known = supported_instruction_sets()
        if instruction_set not in known:
            raise NativeUnavailableError(
                f"this processor cannot run {instruction_set}; the best it can run is {known[0]}"
            )
        self.library = _load(instruction_set)
        self.instruction_set = instruction_set
        self.threads = threads
        self.memory = PackedMemory()
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
    _check_layouts(library, path.name)
    return library


def _check_layouts(library: ctypes.CDLL, name: str) -> None:
    """Compare the structs as the library lays them out with native_abi's."""
    given = ctypes.POINTER(ctypes.c_int64)()
    count = library.kv_struct_layouts(ctypes.byref(given))
    expected = struct_layouts()
    for (what, number), found in zip(expected, given[:count], strict=False):
        if number != found:
            raise NativeUnavailableError(
                f"{name} has {what} at {found} bytes, but {number} is needed; install again"
            )
    if count != len(expected):
        raise NativeUnavailableError(
            f"{name} describes its structs by {count} numbers, but {len(expected)} are needed; "
            "install again"
        )


@functools.cache
def supported_instruction_sets() -> tuple[InstructionSet, ...]:
    """Ask the processor what it can run, best first, through the library that runs on any.

    Raises:
        NativeUnavailableError: Not even the portable library was built.
    """
    names = _load("portable").kv_instruction_sets().decode().split(",")
    return tuple(known for known in INSTRUCTION_SETS if known in names)


def load_kernels(
    choice: str = "auto", *, threads: int
) -> tuple[NativeKernels | None, NativeStatus]:
    """Load the best kernels this machine can run, or the ones that are named.

    Args:
        choice: auto, off, or an instruction set.
        threads: As for NativeKernels.

    Returns:
        The kernels, or None when the torch path has to do; and what was chosen and why.

    Raises:
        NativeUnavailableError: The choice cannot be had.
    """
    if choice == "off":
        return None, NativeStatus("torch", "kernels are off", threads)
    if choice == "auto":
        return _load_best(threads)
    for known in INSTRUCTION_SETS:
        if choice == known:
            return NativeKernels(known, threads=threads), NativeStatus(known, "asked for", threads)
    raise NativeUnavailableError(
        f"kernels is {choice!r}; expected auto, off, {', '.join(INSTRUCTION_SETS)}"
    )


def _load_best(threads: int) -> tuple[NativeKernels | None, NativeStatus]:
    """Load the best library that was built; the reason names what is missing."""
    try:
        supported = supported_instruction_sets()
    except NativeUnavailableError as error:
        return None, NativeStatus("torch", str(error), threads)
    missing = ""
    for known in supported:
        try:
            kernels = NativeKernels(known, threads=threads)
        except NativeUnavailableError as error:
            missing = f" ({error})"
            continue
        reason = f"the best this processor can run is {supported[0]}{missing}"
        return kernels, NativeStatus(known, reason, threads)
    return None, NativeStatus("torch", f"no kernel library{missing}", threads)
