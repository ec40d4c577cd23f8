"""NativeChooser: choosing tokens with the native kernels, all rows in one call.

It keeps one record per row, filled when the batch changes; a step only brings up to date what
moves: random numbers, tokens to be penalised and bans. A row is computed by itself, so its token
is bitwise the same whoever shares the batch, with any number of threads.
Owned by the Sampler, on the engine thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from model.native_abi import NOT_FINITE as ROW_NOT_FINITE
from model.native_abi import NOTHING_ALLOWED as ROW_NOTHING_ALLOWED
from model.native_library import NativeKernels
from model.native_sampling import CHOICE, BoundChoice, NativeSampling, address
from server.engine.grammars.grammar import Words
from server.engine.sampling.draws import Draws
from server.engine.sampling.logit_edits import NOTHING_ALLOWED, LogitEdits
from server.engine.sampling.logprobs import LOGPROB_FLOOR, NOT_FINITE, as_token_logprobs
from server.request import Logprob, Request

_REASONS = {ROW_NOT_FINITE: NOT_FINITE, ROW_NOTHING_ALLOWED: NOTHING_ALLOWED}

_ALL_OF_A_WORD = -1


class NativeChooser:
    """Chooses and scores tokens; see server.engine.sampler.Chooser.

    Args:
        kernels: What computes.
        vocab_size: V, the width of the logits.
    """

    def __init__(self, kernels: NativeKernels, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._sampling = NativeSampling(kernels, vocab_size)
        self._choices = np.zeros(0, CHOICE)
        self._edited: dict[int, _EditedRow] = {}
        self._requests: Sequence[Request] = ()
        self._draws: Draws | None = None
        self._bound: BoundChoice | None = None

    def begin(self, requests: Sequence[Request], edits: Mapping[int, LogitEdits]) -> None:
        """Learn which requests the rows of the next steps belong to."""
        params = [request.params for request in requests]
        self._choices = choices = np.zeros(len(requests), CHOICE)
        for name in ("repetition_penalty", "presence_penalty", "frequency_penalty",
                     "top_k", "top_p", "min_p"):  # fmt: skip
            choices[name] = [getattr(one, name) for one in params]
        choices["temperature"] = [0.0 if one.is_greedy else one.temperature for one in params]
        self._edited = {
            row: _EditedRow(edit, choices[row : row + 1], vocab_size=self._vocab_size)
            for row, edit in edits.items()
        }
        self._requests = requests
        self._bound = None
        self._draws = None if all(one.is_greedy for one in params) else Draws(requests)

    def choose(self, logits: Tensor, *, allowed: Words | None) -> tuple[list[int], dict[int, str]]:
        """Choose a token in each row (B, V); failed rows are named with the reason."""
        if self._draws is not None:
            positions = [len(request.token_ids) for request in self._requests]
            self._choices["uniform"] = self._draws.at(positions)
        for edited in self._edited.values():
            edited.refresh()
        if allowed is not None:
            allowed = self._with_own_bans(allowed)
            self._point_to(allowed)
        bound = self._bound
        if bound is None or bound.logits is not logits:
            bound = self._bound = self._sampling.bind(logits.contiguous(), self._choices)
        num_failed = bound.run()
        if allowed is not None:
            self._point_to(None)
        failed = {}
        if num_failed:
            failed = {row: _REASONS[what] for row, what in enumerate(bound.outcomes) if what}
        return bound.tokens.tolist(), failed

    def score(
        self,
        logits: Tensor,
        token_ids: Sequence[int],
        *,
        rows: Sequence[int],
        num_top: Sequence[int],
    ) -> list[Logprob]:
        """Score one token in each of these rows of `logits`."""
        tokens, scores = self._sampling.score(
            logits, token_ids, rows=rows, alternatives=max(num_top, default=0)
        )
        logprobs = np.maximum(scores, LOGPROB_FLOOR).tolist()
        return as_token_logprobs(tokens.tolist(), logprobs, num_top)

    def _with_own_bans(self, allowed: Words) -> Words:
        """The masks (B, words) of a step without what the rows' own parameters rule out."""
        allowed = np.ascontiguousarray(allowed)
        both = [row for row, edited in self._edited.items() if edited.allowed is not None]
        if both:
            allowed = allowed.copy()
        for row in both:
            own = self._edited[row].allowed
            assert own is not None
            allowed[row, : len(own)] &= own
        return allowed

    def _point_to(self, allowed: Words | None) -> None:
        """Name the masks of the rows that have one: a step's, or their own."""
        self._choices["allowed"] = 0
        for row, edited in self._edited.items():
            if edited.allowed is not None:
                self._choices["allowed"][row] = address(edited.allowed)
        if allowed is not None:
            rows = np.flatnonzero((allowed != _ALL_OF_A_WORD).any(1))
            self._choices["allowed"][rows] = address(allowed) + rows * allowed.strides[0]


class _EditedRow:
    """One row's edits, as its record shows them to the kernels.

    Args:
        edit: What the request's parameters do; followed by `refresh`.
        record: (1,) of CHOICE, written.
        vocab_size: Ids from there on are left out: a tokenizer may know more than the model.
    """

    def __init__(self, edit: LogitEdits, record: npt.NDArray[np.void], *, vocab_size: int) -> None:
        self._edit = edit
        self._record = record
        self._vocab_size = vocab_size
        self._penalised_count = record["penalised_count"]
        self._buffers = edit.buffers
        self._banned = edit.end_ids
        self._point_to_buffers()
        assert not len(edit.bias_ids) or edit.bias_ids.max() < vocab_size
        record["biased_ids"] = address(edit.bias_ids)
        record["biases"] = address(edit.biases)
        record["biased_count"] = len(edit.bias_ids)
        self.allowed = self._own_mask() if len(edit.allowed_ids) else None
        """(words,) the only tokens that may be chosen; None if all may."""
        if self.allowed is not None:
            record["allowed"] = address(self.allowed)

    def refresh(self) -> None:
        """Take in the tokens that the request got since."""
        edit = self._edit
        edit.update()
        self._penalised_count[0] = edit.num_ids
        if edit.buffers[0] is not self._buffers[0]:
            self._point_to_buffers()
        if edit.ever_bans:
            banned = edit.banned_ids
            self._banned = np.ascontiguousarray(banned[banned < self._vocab_size])
            self._record["banned_ids"] = address(self._banned)
            self._record["banned_count"] = len(self._banned)

    def _point_to_buffers(self) -> None:
        self._buffers = self._edit.buffers
        ids, counts = self._buffers
        self._record["penalised_ids"], self._record["output_counts"] = address(ids), address(counts)

    def _own_mask(self) -> Words:
        bits = np.zeros(-(-self._vocab_size // 32) * 32, np.uint8)
        bits[self._edit.allowed_ids] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)
