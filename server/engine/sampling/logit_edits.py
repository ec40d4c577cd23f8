"""LogitEdits: what one request's penalties, biases and bans do to its logits.

It remembers which tokens the request holds and grows by those that are new, so a long prompt is
read once. It never touches a logit that its parameters do not name.
Owned by the Sampler, on the engine thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from server.request import Request, SamplingParams

NOTHING_ALLOWED = "The request's structured output, biases and bans leave no token to choose."
"""What a client is told when the edits are at odds with one another."""


class LogitEdits:
    """The edits of one request, kept up to date with its growing sequence.

    Args:
        request: whose tokens are followed.
        end_ids: tokens banned until `min_tokens` are generated.
    """

    def __init__(self, request: Request, end_ids: frozenset[int]) -> None:
        self.request = request
        params = request.params
        self.bias_ids = np.fromiter(params.logit_bias.keys(), np.int64)
        self.biases = np.fromiter(params.logit_bias.values(), np.float32)
        self.end_ids = np.array(sorted(end_ids), np.int64)
        self.allowed_ids = np.array(params.allowed_token_ids, np.int64)
        self._bad_words = BadWords(params.bad_words)
        # Only the repetition penalty looks at the prompt; without penalties nothing is followed.
        self._next = 0 if params.repetition_penalty != 1.0 else request.num_prompt_tokens
        self._follows = _penalises(params)
        self._slots: dict[int, int] = {}
        self._ids = np.zeros(64, np.int64)
        self._counts = np.zeros(64, np.float32)

    @staticmethod
    def needed(params: SamplingParams) -> bool:
        """Whether these parameters ever change a logit."""
        bans = params.min_tokens > 0 or params.bad_words or params.allowed_token_ids
        return _penalises(params) or bool(params.logit_bias) or bool(bans)

    @property
    def num_ids(self) -> int:
        """How many different tokens are penalised."""
        return len(self._slots)

    @property
    def buffers(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Where `ids` and `output_counts` begin; both are replaced when they have grown full."""
        return self._ids, self._counts

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """Each token that is penalised, once."""
        return self._ids[: len(self._slots)]

    @property
    def output_counts(self) -> npt.NDArray[np.float32]:
        """How often each of `ids` was generated; 0 for one that is in the prompt only."""
        return self._counts[: len(self._slots)]

    @property
    def ever_bans(self) -> bool:
        """Whether `banned_ids` is worth a look."""
        return self.request.params.min_tokens > 0 or bool(self.request.params.bad_words)

    @property
    def banned_ids(self) -> npt.NDArray[np.int64]:
        """The end tokens while `min_tokens` is not reached, and what would end a bad word."""
        request = self.request
        reached = request.num_output_tokens >= request.params.min_tokens
        ends = self.end_ids[:0] if reached else self.end_ids
        if not request.params.bad_words:
            return ends
        last_ids = self._bad_words.last_ids(request.token_ids, request.num_prompt_tokens)
        return np.concatenate([ends, np.array(last_ids, np.int64)])

    def update(self) -> None:
        """Take in the tokens that were appended to the request since the last call."""
        request = self.request
        if not self._follows:
            return
        for position in range(self._next, len(request.token_ids)):
            slot = self._slot(request.token_ids[position])
            self._counts[slot] += position >= request.num_prompt_tokens
        self._next = len(request.token_ids)

    def _slot(self, token_id: int) -> int:
        slot = self._slots.setdefault(token_id, len(self._slots))
        if slot == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[slot] = token_id
        return slot


class BadWords:
    """Sequences of tokens that must not be generated.

    Args:
        words: each at least one token.
    """

    def __init__(self, words: Sequence[tuple[int, ...]]) -> None:
        self._single = [word[0] for word in words if len(word) == 1]
        self._longer: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        for word in words:
            if len(word) > 1:
                self._longer[word[-2]].append(word)

    def last_ids(self, token_ids: Sequence[int], first: int) -> list[int]:
        """Return the tokens that would complete a word.

        Args:
            token_ids: the sequence so far.
            first: where the generated part begins; a word lies wholly in it.
        """
        if len(token_ids) == first:
            return self._single
        return self._single + [
            word[-1]
            for word in self._longer.get(token_ids[-1], ())
            if len(word) - 1 <= len(token_ids) - first
            and tuple(token_ids[1 - len(word) :]) == word[:-1]
        ]


def apply_edits(logits: Tensor, rows: Sequence[int], edits: Sequence[LogitEdits]) -> None:
    """Penalise, bias, ban all that is not allowed, and ban what is not, in place, in this order.

    Only the named entries of `logits` are read and written, each by itself, so a row's result
    cannot depend on another row.

    Args:
        logits: (B, V) float32, contiguous.
        rows: the row of each of `edits`.
        edits: brought up to date first.
    """
    for edit in edits:
        edit.update()
    _penalise(logits, rows, edits)
    flat = logits.view(-1)
    biased = _flat_index(logits, rows, [edit.bias_ids for edit in edits])
    if len(biased):
        flat[biased] += _to_device([edit.biases for edit in edits], logits)
    for row, edit in zip(rows, edits, strict=True):
        if len(edit.allowed_ids):
            _allow_only(logits[row], _to_device([edit.allowed_ids], logits))
    banned = _flat_index(logits, rows, [edit.banned_ids for edit in edits])
    if len(banned):
        flat[banned] = -torch.inf


def _penalise(logits: Tensor, rows: Sequence[int], edits: Sequence[LogitEdits]) -> None:
    """Repetition penalty as in CTRL (Keskar et al. 2019), then presence and frequency."""
    index = _flat_index(logits, rows, [edit.ids for edit in edits])
    if not len(index):
        return

    def spread(values: Sequence[float]) -> Tensor:
        lengths = [len(edit.ids) for edit in edits]
        return _to_device([np.repeat(np.array(values, np.float32), lengths)], logits)

    params = [edit.request.params for edit in edits]
    repetition = spread([one.repetition_penalty for one in params])
    presence = spread([one.presence_penalty for one in params])
    frequency = spread([one.frequency_penalty for one in params])
    counts = _to_device([edit.output_counts for edit in edits], logits)

    flat = logits.view(-1)
    values = flat[index]
    values = torch.where(values < 0, values * repetition, values / repetition)
    flat[index] = values - presence * (counts > 0) - frequency * counts


def _allow_only(row: Tensor, allowed: Tensor) -> None:
    """Ban every token of a row (V,) but these."""
    kept = row[allowed]
    row.fill_(-torch.inf)
    row[allowed] = kept


def _penalises(params: SamplingParams) -> bool:
    return (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) != (
        1,
        0,
        0,
    )


def _flat_index(
    logits: Tensor, rows: Sequence[int], ids: Sequence[npt.NDArray[np.int64]]
) -> Tensor:
    width = logits.shape[1]
    parts = [row * width + of_row for row, of_row in zip(rows, ids, strict=True)]
    return _to_device(parts, logits)


def _to_device(parts: Sequence[npt.NDArray[np.generic]], like: Tensor) -> Tensor:
    return torch.from_numpy(np.concatenate(parts)).to(like.device)
