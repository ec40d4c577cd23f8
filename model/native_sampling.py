"""NativeSampling: choosing and scoring tokens with the native kernels, all rows in one call.

Turns arrays into the kernels' addresses and keeps their scratch memory. Which parameters a row has,
and what they mean for a request, is the sampler's business, which owns it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.native_abi import ChoiceStruct
from model.native_library import NativeKernels

CHOICE = np.dtype(ChoiceStruct)
"""kv_choice of kvserve.h, as the elements of an array."""


class NativeSampling:
    """The sampling kernels for one vocabulary.

    Args:
        kernels: What computes.
        width: V, the width of the logits.
    """

    def __init__(self, kernels: NativeKernels, width: int) -> None:
        self._kernels = kernels
        self._width = width
        size = kernels.threads * kernels.library.kv_sampling_scratch(width)
        self._scratch = torch.empty(size + 64, dtype=torch.uint8)
        self._scratch_address = -(-self._scratch.data_ptr() // 64) * 64

    def bind(self, logits: Tensor, choices: NDArray[np.void]) -> BoundChoice:
        """Ready the kernel for this memory, for whatever logits and choices it will hold.

        Args:
            logits: (B, V) float32, contiguous, left unchanged.
            choices: (B,) of CHOICE; what they point to is kept alive by the caller, and all ids
                are below V.
        """
        assert choices.dtype == CHOICE
        assert len(choices) == logits.shape[0]
        assert logits.is_contiguous(), "a copy would not follow what is written to them later"
        self._check(logits)
        tokens, outcomes = np.zeros(len(choices), np.int64), np.zeros(len(choices), np.int32)
        run = partial(
            self._kernels.library.kv_choose,
            self._kernels.pool,
            logits.data_ptr(),
            len(choices),
            self._width,
            address(choices),
            self._scratch_address,
            address(tokens),
            address(outcomes),
        )
        return BoundChoice(run, logits, tokens, outcomes, kept_alive=(self, choices))

    def score(
        self,
        logits: Tensor,
        token_ids: Sequence[int],
        *,
        rows: Sequence[int],
        alternatives: int,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Log-probabilities of a token and of the likeliest ones in some rows.

        Args:
            logits: (B, V) float32.
            token_ids: (R,) the token to be scored in each of `rows`.
            rows: (R,) from 0 to B - 1.
            alternatives: A, how many of the likeliest are looked for; at most V are found.

        Returns:
            Token ids and log-probabilities, (R, 1 + A) each, the given token first, then the
            likeliest, ties by lower id. NaN in rows with a NaN, infinity or nothing finite.
        """
        self._check(logits)
        logits = logits.contiguous()
        alternatives = min(alternatives, self._width)
        tokens = np.empty((len(rows), 1 + alternatives), np.int64)
        tokens[:, 0] = token_ids
        scores = np.empty(tokens.shape, np.float32)
        row_ids = np.array(rows, np.int64)
        assert not len(row_ids) or 0 <= row_ids.min() <= row_ids.max() < len(logits)
        assert not len(row_ids) or 0 <= tokens[:, 0].min() <= tokens[:, 0].max() < self._width
        self._kernels.library.kv_score(
            self._kernels.pool,
            logits.data_ptr(),
            address(row_ids),
            len(row_ids),
            self._width,
            alternatives,
            self._scratch_address,
            address(tokens),
            address(scores),
        )
        return tokens, scores

    def _check(self, logits: Tensor) -> None:
        assert logits.dtype == torch.float32
        assert logits.shape[1] == self._width


@dataclass(frozen=True, slots=True)
class BoundChoice:
    """Choosing a token in each row, over memory that stays from step to step."""

    run: Callable[[], int]
    """The kernels' function with all it takes: how many rows failed."""
    logits: Tensor
    """(B, V) what it was bound to."""
    tokens: NDArray[np.int64]
    """(B,) takes the tokens."""
    outcomes: NDArray[np.int32]
    """(B,) takes what became of each row; see native_abi.CHOSEN."""
    kept_alive: tuple[object, ...]


def address(array: NDArray[np.generic]) -> int:
    """Where an array's first element lies in memory."""
    assert array.flags.c_contiguous
    found: int = array.ctypes.data
    return found
