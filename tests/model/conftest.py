"""The native kernels, for the tests of what they compute."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from model.native_library import (
    INSTRUCTION_SETS,
    InstructionSet,
    NativeKernels,
    NativeUnavailableError,
)


@pytest.fixture(scope="module", params=INSTRUCTION_SETS)
def pools(request: pytest.FixtureRequest) -> Iterator[list[NativeKernels]]:
    """One instruction set with one thread, and with two."""
    name: InstructionSet = request.param
    try:
        yield [NativeKernels(name, threads=threads) for threads in (1, 2)]
    except NativeUnavailableError as error:
        pytest.skip(str(error))
