"""BoundPass and BoundLogits: what the native kernels run again and again over memory that stays.

A step that has the form of the last one then asks torch for no address and checks no shape: behind
the kernels, which sweep all weights through the caches, each such question takes microseconds.
Made by NativeTransformer; whoever runs them fills the memory first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from model.native_abi import STEP_ERRORS


@dataclass(frozen=True, slots=True)
class BoundPass:
    """All layers."""

    run: Callable[[], int]
    """The kernels' function with all it takes; Python's lock is released in it."""
    out: Tensor
    """(N, C) takes the hidden states."""
    kept_alive: tuple[object, ...]

    def __call__(self) -> Tensor:
        """Run them, writing keys and values; returns `out`.

        Raises:
            ValueError: An index of the batch is out of its bounds.
        """
        error = self.run()
        if error:
            raise ValueError(f"The batch cannot be run: {STEP_ERRORS[error]}.")
        return self.out


@dataclass(frozen=True, slots=True)
class BoundLogits:
    """The output layer."""

    run: Callable[[], None]
    out: Tensor
    """(R, V) takes the logits."""
    kept_alive: tuple[object, ...]

    def __call__(self) -> Tensor:
        """Compute them; returns `out`."""
        self.run()
        return self.out
