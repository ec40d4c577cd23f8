"""Sampler: one token for each request of a step, from the logits of the batch.

Stages, as in transformers: penalties, biases and bans, temperature, top_k, top_p, min_p, draw.
Where a stage cuts, all tokens equal to the last one kept stay, so no sorting order matters.
A row's token is bitwise the same whoever shares the batch, with any number of threads.
It never decides that a request ends, and never changes a Request.
Owned by the engine, used on its thread only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from model.native_library import NativeKernels
from server.engine.grammars.grammar import Words
from server.engine.sampling.logit_edits import NOTHING_ALLOWED, LogitEdits
from server.engine.sampling.native_chooser import NativeChooser
from server.engine.sampling.torch_chooser import TorchChooser
from server.request import Logprob, Request


class Chooser(Protocol):
    """What computes: NativeChooser, DeviceChooser, or TorchChooser in their place."""

    def begin(self, requests: Sequence[Request], edits: Mapping[int, LogitEdits]) -> None:
        """Learn which requests the rows of the next steps belong to.

        Args:
            requests: (B,) whose tokens so far are the context of the rows.
            edits: row -> what its parameters do to its logits, for the rows that have edits.
        """

    def choose(self, logits: Tensor, *, allowed: Words | None) -> tuple[list[int], dict[int, str]]:
        """Choose a token in each row of the logits (B, V), which are left unchanged.

        Args:
            logits: float32.
            allowed: (B, words) bit i of word w stands for token 32 w + i; None is all.

        Returns:
            The tokens (B,), and the rows that failed with the reason.
        """

    def score(
        self,
        logits: Tensor,
        token_ids: Sequence[int],
        *,
        rows: Sequence[int],
        num_top: Sequence[int],
    ) -> list[Logprob]:
        """Score one token in each of these rows, with its likeliest alternatives.

        Raises:
            ValueError: a row is not finite.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplerOutput:
    """What one step chose, row by row."""

    token_ids: list[int]
    """(B,) the chosen tokens; meaningless in a failed row."""
    logprobs: list[Logprob | None]
    """(B,) for the rows that asked and did not fail."""
    failed: dict[int, str] = field(default_factory=dict)
    """Row -> why no token could be chosen, a sentence for the client."""

    def is_contradiction(self, row: int) -> bool:
        """Whether a row failed because its request allows no token, through no fault of ours."""
        return self.failed.get(row) == NOTHING_ALLOWED


class Sampler:
    """Chooses the next tokens of a batch whose rows may all have different parameters.

    Args:
        vocab_size: V, the width of the logits.
        device: where the logits are.
        eos_token_ids: the end tokens that `min_tokens` holds back.
        kernels: what computes on a CPU; None leaves it to torch.
        chooser: what computes on another device, in place of torch.
    """

    def __init__(
        self,
        vocab_size: int,
        device: torch.device | str = "cpu",
        *,
        eos_token_ids: frozenset[int] = frozenset(),
        kernels: NativeKernels | None = None,
        chooser: Chooser | None = None,
    ) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._edits: dict[str, LogitEdits] = {}
        self._batch: list[Request] = []
        self._scored: list[tuple[int, int]] = []
        self._chooser: Chooser
        if kernels is not None:
            self._chooser = NativeChooser(kernels, vocab_size)
        else:
            self._chooser = chooser or TorchChooser(device)

    def sample(
        self, logits: Tensor, requests: Sequence[Request], *, allowed: Words | None = None
    ) -> SamplerOutput:
        """Choose one token for each request.

        Args:
            logits: (B, V) float32, left unchanged.
            requests: (B,) whose tokens so far are the context of the rows.
            allowed: (B, words) the tokens that may be chosen, bit i of word w for token 32 w + i;
                None is all.
        """
        if not requests:
            return SamplerOutput(token_ids=[], logprobs=[])
        if self._batch != requests:
            self._begin(list(requests))
        token_ids, failed = self._chooser.choose(logits, allowed=allowed)
        logprobs: list[Logprob | None] = [None] * len(requests)
        if self._scored:
            logprobs = self._score(logits, token_ids, failed)
        return SamplerOutput(token_ids=token_ids, logprobs=logprobs, failed=failed)

    def prompt_logprobs(
        self, logits: Tensor, token_ids: Sequence[int], num_top: int
    ) -> list[Logprob]:
        """Score prompt tokens: row i of `logits` (R, V) is the model's guess at `token_ids[i]`.

        Raises:
            ValueError: a row of `logits` is not finite.
        """
        rows = range(len(token_ids))
        return self._chooser.score(logits, token_ids, rows=rows, num_top=[num_top] * len(rows))

    def forget(self, request_id: str) -> None:
        """Drop what is remembered about a request; harmless for one that is unknown."""
        self._edits.pop(request_id, None)
        if any(request.request_id == request_id for request in self._batch):
            self._begin([])

    def _begin(self, requests: list[Request]) -> None:
        """Gather what stays the same while the same requests are sampled."""
        self._batch = requests
        edits = {
            row: self._edits_of(request)
            for row, request in enumerate(requests)
            if LogitEdits.needed(request.params)
        }
        self._chooser.begin(requests, edits)
        self._scored = [
            (row, request.params.logprobs)
            for row, request in enumerate(requests)
            if request.params.logprobs is not None
        ]

    def _edits_of(self, request: Request) -> LogitEdits:
        edits = self._edits.get(request.request_id)
        if edits is None or edits.request is not request:
            ends = frozenset() if request.params.ignore_eos else self._eos_token_ids
            ends |= request.params.stop_token_ids
            # A model may name end tokens that its own output layer lacks.
            ends = frozenset(end for end in ends if end < self._vocab_size)
            edits = self._edits[request.request_id] = LogitEdits(request, ends)
        return edits

    def _score(
        self, logits: Tensor, token_ids: Sequence[int], failed: dict[int, str]
    ) -> list[Logprob | None]:
        scored: list[Logprob | None] = [None] * len(token_ids)
        wanted = [(row, top) for row, top in self._scored if row not in failed]
        if wanted:
            rows = [row for row, _ in wanted]
            results = self._chooser.score(
                logits,
                [token_ids[row] for row in rows],
                rows=rows,
                num_top=[top for _, top in wanted],
            )
            for row, result in zip(rows, results, strict=True):
                scored[row] = result
        return scored
