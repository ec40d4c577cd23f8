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
        self._call: _Call | None = None

    def choose(
        self, logits: Tensor, choices: NDArray[np.void]
    ) -> tuple[list[int], list[int] | None]:
        """Choose a token in each row.

        Args:
            logits: (B, V) float32, left unchanged.
            choices: (B,) of CHOICE; what they point to is kept alive by the caller, and all ids
                are below V.

        Returns:
            The tokens (B,), and what became of each row (B,), or None if all are chosen.
        """
        call = self._call
        if call is None or call.logits is not logits or call.choices is not choices:
            call = self._call = self._bind(self._checked(logits), choices)
        num_failed = call.run()
        return call.tokens.tolist(), call.outcomes.tolist() if num_failed else None

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
        logits = self._checked(logits)
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

    def _bind(self, logits: Tensor, choices: NDArray[np.void]) -> _Call:
        """Ready the kernel for these arrays, for as long as calls are alike."""
        assert choices.dtype == CHOICE
        assert len(choices) == logits.shape[0]
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
        return _Call(logits, choices, tokens, outcomes, run)

    def _checked(self, logits: Tensor) -> Tensor:
        assert logits.dtype == torch.float32
        assert logits.shape[1] == self._width
        return logits.contiguous()


@dataclass(frozen=True, slots=True)
class _Call:
    """The arrays of one call of kv_choose, and the call."""

    logits: Tensor
    choices: NDArray[np.void]
    tokens: NDArray[np.int64]
    outcomes: NDArray[np.int32]
    run: Callable[[], int]


def address(array: NDArray[np.generic]) -> int:
    """Where an array's first element lies in memory."""
    assert array.flags.c_contiguous
    found: int = array.ctypes.data
    return found
