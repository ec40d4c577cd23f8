"""TorchChooser: choosing tokens with torch operations, on any device.

The reference of the native kernels, and the path where there are none. On a CPU every operation
works on one row at a time in an order fixed by the vocabulary alone: a row's token is bitwise the
same whoever shares the batch, with any number of threads. On other devices the order of sums is
torch's own, and a draw that falls within rounding of a border between two tokens may differ.
Owned by the Sampler, on the engine thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from server.engine.grammars.grammar import Words
from server.engine.sampling.logit_edits import NOTHING_ALLOWED, LogitEdits, apply_edits
from server.engine.sampling.logprobs import NOT_FINITE, token_logprobs
from server.engine.sampling.randomness import streams, uniforms_of, words
from server.engine.sampling.vocabulary_blocks import (
    as_blocks,
    cumulated_blocks,
    inverse_cdf,
    largest_id,
    largest_values,
)
from server.request import Logprob, Request

# How many of the likeliest tokens are looked at to find a cut, before a row is sorted whole.
_CANDIDATES = 128
_MORE_CANDIDATES = 2048


class TorchChooser:
    """Chooses and scores tokens; see server.engine.sampler.Chooser.

    Args:
        device: where the logits are.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)
        self._workspace = torch.empty(2, 0, device=self._device)
        self._edits: Mapping[int, LogitEdits] = {}
        self._random: _RandomRows | None = None

    def begin(self, requests: Sequence[Request], edits: Mapping[int, LogitEdits]) -> None:
        """Learn which requests the rows of the next steps belong to."""
        self._edits = edits
        rows = [row for row, one in enumerate(requests) if not one.params.is_greedy]
        self._random = _RandomRows(rows, requests, self._device) if rows else None

    @torch.inference_mode()
    def choose(self, logits: Tensor, *, allowed: Words | None) -> tuple[list[int], dict[int, str]]:
        """Choose a token in each row (B, V); failed rows are named with the reason."""
        blocks = as_blocks(logits)
        block_maxima = blocks.amax(-1)
        raw_maxima = block_maxima.amax(-1)
        edited = self._edit(logits, allowed)
        if edited is not logits:
            blocks = as_blocks(edited)
            block_maxima = blocks.amax(-1)
        token_ids = largest_id(blocks, block_maxima)
        maxima = block_maxima.amax(-1)
        if self._random is not None:
            self._draw(blocks, maxima, random=self._random, token_ids=token_ids)

        chosen, *bounds = torch.stack([token_ids.double(), raw_maxima, maxima]).tolist()
        return [int(token_id) for token_id in chosen], _failures(*bounds)

    def score(
        self,
        logits: Tensor,
        token_ids: Sequence[int],
        *,
        rows: Sequence[int],
        num_top: Sequence[int],
    ) -> list[Logprob]:
        """Score one token in each of these rows of `logits`."""
        raw = logits if len(rows) == len(logits) else logits[rows]
        return token_logprobs(raw, token_ids, num_top)

    def _edit(self, logits: Tensor, allowed: Words | None) -> Tensor:
        if not self._edits and allowed is None:
            return logits
        edited = logits.clone(memory_format=torch.contiguous_format)
        if self._edits:
            apply_edits(edited, list(self._edits), list(self._edits.values()))
        if allowed is not None:
            bits = np.unpackbits(allowed.view(np.uint8), axis=1, bitorder="little")
            mask = torch.from_numpy(bits[:, : logits.shape[1]]).to(logits.device)
            edited.masked_fill_(mask == 0, -torch.inf)
        return edited

    def _draw(
        self, blocks: Tensor, maxima: Tensor, *, random: _RandomRows, token_ids: Tensor
    ) -> None:
        """Overwrite the greedy choice of the rows that are to be random."""
        if len(random.row_list) < len(token_ids):
            blocks, maxima = blocks[random.rows], maxima[random.rows]
        # Less the maximum first: the quotient of a tiny temperature then overflows downwards only.
        probs, scratch = self._workspace_of(blocks)
        scaled = torch.sub(blocks.flatten(1), maxima.unsqueeze(1), out=scratch)
        torch.softmax(scaled.div_(random.temperature), -1, out=probs)
        if random.has_top_k or random.has_top_p:
            _cut_top(probs, random, scratch)
        if random.has_min_p:
            _cut(probs, random.min_p * probs.amax(-1, keepdim=True), scratch)
        token_ids[random.rows] = inverse_cdf(probs, random.uniforms())

    def _workspace_of(self, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Two matrices (R, V) that outlive the step: fresh pages cost more than the arithmetic."""
        if self._workspace.shape[1] < blocks.numel():
            self._workspace = torch.empty(2, blocks.numel(), device=self._device)
        first, second = self._workspace[:, : blocks.numel()].view(2, len(blocks), -1)
        return first, second


class _RandomRows:
    """The rows that are drawn at random, R of the batch, with their parameters as (R, 1)."""

    def __init__(
        self, row_list: list[int], requests: Sequence[Request], device: torch.device
    ) -> None:
        self.row_list = row_list
        self.device = device
        self._requests = [requests[row] for row in row_list]
        params = [request.params for request in self._requests]
        self.rows = torch.tensor(row_list, device=device)
        self.temperature = self._column([one.temperature for one in params], torch.float32)
        self.min_p = self._column([one.min_p for one in params], torch.float32)
        self.top_p = self._column([one.top_p for one in params], torch.float64)
        self.top_k = self._column([one.top_k for one in params], torch.int64)
        self.has_top_k = any(one.top_k > 0 for one in params)
        self.has_top_p = any(one.top_p < 1 for one in params)
        self.has_min_p = any(one.min_p > 0 for one in params)
        seeds = words([one.seed for one in params])
        self._streams = streams(seeds, words([request.choice for request in self._requests]))

    def uniforms(self) -> Tensor:
        """One uniform number (R, 1) for each row, fixed by its seed, choice and position."""
        positions = words([len(request.token_ids) for request in self._requests])
        numbers = uniforms_of(self._streams, positions)
        return torch.from_numpy(numbers).to(self.device).unsqueeze(1)

    def _column(self, values: Sequence[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device).unsqueeze(1)


def _failures(raw_maxima: Sequence[float], maxima: Sequence[float]) -> dict[int, str]:
    """A maximum is finite exactly if there is no NaN, no +inf, and something to choose."""
    failed = {}
    for row, (raw, edited) in enumerate(zip(raw_maxima, maxima, strict=True)):
        if not np.isfinite(raw):
            failed[row] = NOT_FINITE
        elif not np.isfinite(edited):
            failed[row] = NOTHING_ALLOWED
    return failed


def _cut(probs: Tensor, thresholds: Tensor, scratch: Tensor) -> None:
    """Zero in place what lies below its row's threshold (R, 1).

    The difference to the float just below the threshold is positive for what stays, and above -1
    in any case, so that rounding it up gives 1 or 0: passes that vectorise, as a mask does not.
    """
    below = thresholds.nextafter(torch.full_like(thresholds, -1.0))
    probs.mul_(torch.sub(probs, below, out=scratch).ceil_())


def _cut_top(probs: Tensor, random: _RandomRows, scratch: Tensor) -> None:
    """Leave the top_k likeliest tokens of each row and of these the nucleus of mass top_p."""
    candidates = largest_values(probs, _CANDIDATES)
    if random.has_top_k:
        thresholds = _top_k_thresholds(probs, candidates, random)
        _cut(probs, thresholds, scratch)
        _cut(candidates, thresholds, torch.empty_like(candidates))
    if random.has_top_p:
        _cut(probs, _top_p_thresholds(probs, candidates, random), scratch)


def _top_k_thresholds(probs: Tensor, candidates: Tensor, random: _RandomRows) -> Tensor:
    """The probability (R, 1) of each row's k-th likeliest token; 0 where top_k is off."""
    active = (random.top_k > 0) & (random.top_k < probs.shape[1])
    ranks = random.top_k - 1
    return _thresholds(probs, candidates, active, find_last=lambda _, rows: ranks[rows])


def _top_p_thresholds(probs: Tensor, candidates: Tensor, random: _RandomRows) -> Tensor:
    """The probability (R, 1) of the last token of each row's nucleus; 0 where top_p is off.

    The nucleus is the likeliest tokens whose mass first reaches top_p of what top_k left.
    """
    targets = random.top_p * cumulated_blocks(probs)[:, -1:]

    def find_last(largest: Tensor, rows: Tensor) -> Tensor:
        return (largest.cumsum(-1, dtype=torch.float64) < targets[rows]).sum(-1, keepdim=True)

    return _thresholds(probs, candidates, random.top_p < 1, find_last=find_last)


def _thresholds(
    probs: Tensor,
    candidates: Tensor,
    active: Tensor,
    *,
    find_last: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """The least probability (R, 1) to be kept, looking at ever more of the likeliest tokens.

    Args:
        probs: (R, V) what the stages before have left.
        candidates: (R, C) the largest of them, in order.
        active: (R, 1) bool, the rows to be cut; the others get 0.
        find_last: (largest of some rows, those rows) -> rank of the last token to be kept, or the
            number of tokens looked at if it is not among them.
    """
    thresholds = torch.zeros_like(probs[:, :1])
    pending = torch.nonzero(active.squeeze(1)).squeeze(1)
    largest = candidates[pending]
    for wider in (_MORE_CANDIDATES, probs.shape[1], None):
        last = find_last(largest, pending)
        thresholds[pending] = largest.gather(1, last.clamp(max=largest.shape[1] - 1))
        pending = pending[last.squeeze(1) >= largest.shape[1]]
        if not len(pending) or wider is None:
            break
        largest = largest_values(probs[pending], wider)
    return thresholds
