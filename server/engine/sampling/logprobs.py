"""Log-probabilities under the model itself, with the likeliest alternatives, ready to be sent.

It sees raw logits only: temperature, penalties and biases come later and do not show here.
Pure functions; the sampler's choosers call them on the engine thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from server.engine.sampling.vocabulary_blocks import largest_ids
from server.request import Logprob

LOGPROB_FLOOR = -9999.0
"""Stands for the log-probability of the impossible: JSON knows no infinity."""

NOT_FINITE = "The model's output for this request is not a number or infinite."
"""What a client is told when there is nothing to choose or score from."""

# Entries of a logits slice that are scored at once: 16 MiB of float32.
_SLICE_ENTRIES = 1 << 22


def token_logprobs(
    logits: Tensor, token_ids: Sequence[int], num_top: Sequence[int]
) -> list[Logprob]:
    """Return each row's log-probability of its token and its `num_top` likeliest alternatives.

    Ties among the alternatives go to the lower id. Memory beyond `logits` stays within tens of
    megabytes however many rows there are.

    Args:
        logits: (R, V) float32, raw.
        token_ids: (R,) the token to be scored in each row.
        num_top: (R,) how many alternatives each row reports.

    Raises:
        ValueError: a row is not finite: it has a NaN, plus infinity, or minus infinity only.
    """
    rows_at_once = max(1, _SLICE_ENTRIES // logits.shape[1])
    scored: list[Logprob] = []
    for start in range(0, len(token_ids), rows_at_once):
        part = slice(start, start + rows_at_once)
        scored += _score_slice(logits[part], token_ids[part], num_top[part])
    return scored


def _score_slice(logits: Tensor, token_ids: Sequence[int], num_top: Sequence[int]) -> list[Logprob]:
    logprobs = logits.log_softmax(-1)
    top_ids = largest_ids(logits, max(num_top))
    chosen = torch.tensor(token_ids, device=logits.device).unsqueeze(1)
    wanted = torch.cat([chosen, top_ids], 1)
    values = logprobs.gather(1, wanted).clamp(min=LOGPROB_FLOOR)
    return as_token_logprobs(wanted.tolist(), values.tolist(), num_top)


def as_token_logprobs(
    token_ids: Sequence[Sequence[int]],
    logprobs: Sequence[Sequence[float]],
    num_top: Sequence[int],
) -> list[Logprob]:
    """Return what is to be sent, from each row's token and its likeliest alternatives.

    Args:
        token_ids: (R, 1 + A) the token of each row, then at least `num_top` alternatives.
        logprobs: (R, 1 + A) theirs, none below LOGPROB_FLOOR.
        num_top: (R,) how many alternatives each row reports.

    Raises:
        ValueError: a row's log-probability is not a number.
    """
    if any(math.isnan(row[0]) for row in logprobs):
        raise ValueError(NOT_FINITE)
    return [
        Logprob(ids[0], row[0], tuple(zip(ids[1 : 1 + top], row[1 : 1 + top], strict=True)))
        for ids, row, top in zip(token_ids, logprobs, num_top, strict=True)
    ]
