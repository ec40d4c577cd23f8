"""Sampler: one token for each request of a step, from the logits of the batch.

Stages, as in transformers: penalties, biases and bans, temperature, top_k, top_p, min_p, draw.
Where a stage cuts, all tokens equal to the last one kept stay, so no sorting order matters.
Every operation works on one row at a time in an order fixed by the vocabulary alone: a row's token
is bitwise the same whoever shares the batch, with any number of threads.
It never decides that a request ends, and never changes a Request.
Owned by the engine, used on its thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from server.logit_edits import LogitEdits, apply_edits
from server.logprobs import NOT_FINITE, token_logprobs
from server.randomness import UInt64Array, uniforms
from server.request import Request, SamplingParams, TokenLogprob
from server.vocabulary_blocks import (
    as_blocks,
    cumulated_blocks,
    inverse_cdf,
    largest_id,
    largest_values,
)

# How many of the likeliest tokens are looked at to find a cut, before a row is sorted whole.
_CANDIDATES = 128
_MORE_CANDIDATES = 2048
_NOTHING_ALLOWED = "The request's penalties, biases and bans leave no token to choose."


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplerOutput:
    """What one step chose, row by row."""

    token_ids: list[int]
    """(B,) the chosen tokens; meaningless in a failed row."""
    logprobs: list[TokenLogprob | None]
    """(B,) for the rows that asked and did not fail."""
    failed: dict[int, str] = field(default_factory=dict)
    """Row -> why no token could be chosen, a sentence for the client."""

    def is_contradiction(self, row: int) -> bool:
        """Whether a row failed because its request allows no token, through no fault of ours."""
        return self.failed.get(row) == _NOTHING_ALLOWED


class Sampler:
    """Chooses the next tokens of a batch whose rows may all have different parameters.

    Args:
        vocab_size: V, the width of the logits.
        device: where the logits are.
        eos_token_ids: the end tokens that `min_tokens` holds back.
    """

    def __init__(
        self,
        vocab_size: int,
        device: torch.device | str = "cpu",
        *,
        eos_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._vocab_size = vocab_size
        self._device = torch.device(device)
        self._eos_token_ids = eos_token_ids
        self._edits: dict[str, LogitEdits] = {}
        self._batch = _Batch([], self._device)
        self._workspace = torch.empty(2, 0, device=self._device)

    @torch.inference_mode()
    def sample(
        self, logits: Tensor, requests: Sequence[Request], *, allowed: Tensor | None = None
    ) -> SamplerOutput:
        """Choose one token for each request.

        Args:
            logits: (B, V) float32, left unchanged.
            requests: (B,) whose tokens so far are the context of the rows.
            allowed: (B, V) bool, the tokens that may be chosen; None is all.
        """
        assert logits.shape == (len(requests), self._vocab_size)
        if not requests:
            return SamplerOutput(token_ids=[], logprobs=[])
        if self._batch.requests != list(requests):
            self._batch = _Batch(requests, self._device)

        blocks = as_blocks(logits)
        block_maxima = blocks.amax(-1)
        raw_maxima = block_maxima.amax(-1)
        edited = self._edit(logits, requests, allowed)
        if edited is not logits:
            blocks = as_blocks(edited)
            block_maxima = blocks.amax(-1)
        token_ids = largest_id(blocks, block_maxima)
        maxima = block_maxima.amax(-1)
        if self._batch.random is not None:
            self._draw(blocks, maxima, token_ids)

        chosen, *bounds = torch.stack([token_ids.double(), raw_maxima, maxima]).tolist()
        ids = [int(token_id) for token_id in chosen]
        failed = _failures(*bounds)
        return SamplerOutput(
            token_ids=ids, logprobs=self._score(logits, ids, failed), failed=failed
        )

    def prompt_logprobs(
        self, logits: Tensor, token_ids: Sequence[int], num_top: int
    ) -> list[TokenLogprob]:
        """Score prompt tokens: row i of `logits` (R, V) is the model's guess at `token_ids[i]`.

        Raises:
            ValueError: a row of `logits` is not finite.
        """
        return token_logprobs(logits, token_ids, [num_top] * len(token_ids))

    def forget(self, request_id: str) -> None:
        """Drop what is remembered about a request; harmless for one that is unknown."""
        self._edits.pop(request_id, None)
        if any(request.request_id == request_id for request in self._batch.requests):
            self._batch = _Batch([], self._device)

    def _edit(self, logits: Tensor, requests: Sequence[Request], allowed: Tensor | None) -> Tensor:
        rows = self._batch.edited_rows
        if not rows and allowed is None:
            return logits
        edited = logits.clone(memory_format=torch.contiguous_format)
        if rows:
            apply_edits(edited, rows, [self._edits_of(requests[row]) for row in rows])
        if allowed is not None:
            edited.masked_fill_(~allowed, -torch.inf)
        return edited

    def _edits_of(self, request: Request) -> LogitEdits:
        edits = self._edits.get(request.request_id)
        if edits is None or edits.request is not request:
            ends = frozenset() if request.params.ignore_eos else self._eos_token_ids
            ends |= request.params.stop_token_ids
            # A model may name end tokens that its own output layer lacks.
            ends = frozenset(end for end in ends if end < self._vocab_size)
            edits = self._edits[request.request_id] = LogitEdits(request, ends)
        return edits

    def _draw(self, blocks: Tensor, maxima: Tensor, token_ids: Tensor) -> None:
        """Overwrite the greedy choice of the rows that are to be random."""
        random = self._batch.random
        assert random is not None
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

    def _score(
        self, logits: Tensor, token_ids: Sequence[int], failed: dict[int, str]
    ) -> list[TokenLogprob | None]:
        scored: list[TokenLogprob | None] = [None] * len(token_ids)
        wanted = [(row, top) for row, top in self._batch.scored_rows if row not in failed]
        if wanted:
            rows = [row for row, _ in wanted]
            chosen = [token_ids[row] for row in rows]
            raw = logits if len(rows) == len(logits) else logits[rows]
            results = token_logprobs(raw, chosen, [top for _, top in wanted])
            for row, result in zip(rows, results, strict=True):
                scored[row] = result
        return scored


class _Batch:
    """What stays the same while the same requests are sampled: parameters as arrays."""

    def __init__(self, requests: Sequence[Request], device: torch.device) -> None:
        self.requests = list(requests)
        params = [request.params for request in requests]
        self.edited_rows = [row for row, one in enumerate(params) if LogitEdits.needed(one)]
        self.scored_rows = [
            (row, one.logprobs) for row, one in enumerate(params) if one.logprobs is not None
        ]
        rows = [row for row, one in enumerate(params) if not is_greedy(one)]
        self.random = _RandomRows(rows, requests, device) if rows else None


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
        self._seeds = _words([one.seed for one in params])
        self._choices = _words([request.choice for request in self._requests])

    def uniforms(self) -> Tensor:
        """One uniform number (R, 1) for each row, fixed by its seed, choice and position."""
        positions = _words([len(request.token_ids) for request in self._requests])
        numbers = uniforms(self._seeds, self._choices, positions)
        return torch.from_numpy(numbers).to(self.device).unsqueeze(1)

    def _column(self, values: Sequence[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device).unsqueeze(1)


def is_greedy(params: SamplingParams) -> bool:
    """Whether the temperature is 0, or so small that float32 cannot hold it or its inverse."""
    return params.temperature <= 1.0 / float(np.finfo(np.float32).max)


def _words(values: Sequence[int]) -> UInt64Array:
    return np.array([value & 0xFFFFFFFFFFFFFFFF for value in values], np.uint64)


def _failures(raw_maxima: Sequence[float], maxima: Sequence[float]) -> dict[int, str]:
    """A maximum is finite exactly if there is no NaN, no +inf, and something to choose."""
    failed = {}
    for row, (raw, edited) in enumerate(zip(raw_maxima, maxima, strict=True)):
        if not np.isfinite(raw):
            failed[row] = NOT_FINITE
        elif not np.isfinite(edited):
            failed[row] = _NOTHING_ALLOWED
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
