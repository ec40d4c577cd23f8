"""Perplexity of a text, and how far one run of a model is from another.

The text is read in overlapping windows; each token is scored once, in the first window that holds
it. Logits of both runs are compared a slice at a time, so that memory does not grow with the text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from server.engine.loaded_engine import LoadedEngine
from server.errors import ConfigurationError

Slice = tuple[range, Tensor]
Progress = Callable[[int, int], None]
"""Told the tokens scored so far, and how many there will be."""


@dataclass(frozen=True, slots=True)
class Window:
    """A part of the text, and which of its tokens are scored in it."""

    start: int
    stop: int
    first_scored: int
    """Tokens of the text from here to `stop` are new; those before are their context."""


@dataclass(slots=True)
class Quality:
    """What was found; one float32 tensor for each slice of the text, joined when asked for."""

    losses: list[Tensor] = field(default_factory=list)
    """Negative natural log-probability of each token."""
    reference_losses: list[Tensor] = field(default_factory=list)
    divergences: list[Tensor] = field(default_factory=list)
    """KL(reference || run) of what follows, in nats."""
    agreements: list[Tensor] = field(default_factory=list)
    """1 where both runs have the same likeliest token, else 0."""

    def to_json(self) -> dict[str, object]:
        """The figures; those against a reference only if there was one."""
        losses = torch.cat(self.losses).double()
        answer: dict[str, object] = {"num_tokens": len(losses), **_perplexity(losses)}
        if self.divergences:
            divergences = torch.cat(self.divergences).double()
            answer["reference"] = _perplexity(torch.cat(self.reference_losses).double())
            answer["kl_mean"] = divergences.mean().item()
            answer["kl_error"] = _standard_error(divergences)
            answer["kl_99th_percentile"] = divergences.quantile(0.99).item()
            answer["kl_max"] = divergences.max().item()
            answer["same_top_token"] = torch.cat(self.agreements).double().mean().item()
        return answer


class PerplexityMeter:
    """Reads texts with one engine, or with two side by side.

    Args:
        loaded: The run to judge; nothing else may use its engine meanwhile.
        reference: The run it is compared with, of the same vocabulary.
        window: Tokens a window has at most, the first token that the model expects included.
        stride: Tokens from one window's start to the next.

    Raises:
        ConfigurationError: The sizes do not fit the model or each other.
    """

    def __init__(
        self,
        loaded: LoadedEngine,
        *,
        reference: LoadedEngine | None = None,
        window: int,
        stride: int,
    ) -> None:
        limit = loaded.info.max_model_len
        if not 2 <= window <= limit:
            raise ConfigurationError(f"--window must be from 2 to {limit} (got {window})")
        self._loaded = loaded
        self._reference = reference
        # What the model wants before any text, such as a token that begins it.
        self._opening = loaded.tokenizer.encode("")
        self._size = window - len(self._opening)
        if not 1 <= stride <= self._size:
            raise ConfigurationError(f"--stride must be from 1 to {self._size} (got {stride})")
        self._stride = stride

    def measure(self, token_ids: Sequence[int], *, progress: Progress = lambda *_: None) -> Quality:
        """Score a text.

        Raises:
            ConfigurationError: There is no token to score.
        """
        # Without an opening nothing precedes the first token, so that nobody predicts it.
        first = 0 if self._opening else 1
        if len(token_ids) <= first:
            raise ConfigurationError("--text: expected at least 2 tokens, but it is shorter")
        quality = Quality()
        for window in windows(len(token_ids), size=self._size, stride=self._stride):
            self._measure(token_ids, window, quality)
            progress(window.stop, len(token_ids))
        return quality

    def _measure(self, token_ids: Sequence[int], window: Window, quality: Quality) -> None:
        """Score the new tokens of one window."""
        text = [*self._opening, *token_ids[window.start : window.stop]]
        first_row = max(0, len(text) - (window.stop - window.first_scored) - 1)
        targets = torch.tensor(text[1:])
        for rows, logits, reference in self._slices(text):
            skip = max(0, first_row - rows.start)
            wanted = slice(rows.start + skip, min(rows.stop, len(targets)))
            count = wanted.stop - wanted.start
            if count <= 0:
                continue
            part = slice(skip, skip + count)
            _enter(
                quality,
                targets[wanted],
                logits[part].cpu(),
                None if reference is None else reference[part].cpu(),
            )

    def _slices(self, text: Sequence[int]) -> Iterator[tuple[range, Tensor, Tensor | None]]:
        """Logits of both runs for the same rows."""
        found = self._loaded.engine.text_logits(text)
        if self._reference is None:
            yield from ((rows, logits, None) for rows, logits in found)
            return
        others = self._reference.engine.text_logits(text)
        for (rows, logits), (other_rows, other) in zip(found, others, strict=True):
            assert rows == other_rows, "two runs of one configuration have the same slices"
            yield rows, logits, other


def windows(num_tokens: int, *, size: int, stride: int) -> Iterator[Window]:
    """Divide a text.

    Args:
        num_tokens: How long it is.
        size: Tokens of a window; the last may be shorter.
        stride: Tokens from one start to the next, at most `size`.
    """
    scored = 0
    for start in range(0, num_tokens, stride):
        stop = min(start + size, num_tokens)
        yield Window(start, stop, scored)
        scored = stop
        if stop == num_tokens:
            return


def _enter(quality: Quality, targets: Tensor, logits: Tensor, reference: Tensor | None) -> None:
    """Compare some rows (R, V) with the tokens (R,) that really followed."""
    run = logits.log_softmax(-1)
    quality.losses.append(-run.gather(1, targets[:, None])[:, 0])
    if reference is None:
        return
    other = reference.log_softmax(-1)
    quality.reference_losses.append(-other.gather(1, targets[:, None])[:, 0])
    quality.agreements.append((run.argmax(-1) == other.argmax(-1)).float())
    # Summed in float64: a divergence of 1e-4 is what is left of terms that cancel.
    terms = other.exp().mul_(other - run)
    quality.divergences.append(terms.sum(-1, dtype=torch.float64).float())


def _perplexity(losses: Tensor) -> dict[str, float]:
    """With the standard error that so many tokens leave."""
    perplexity = math.exp(losses.mean().item())
    return {"perplexity": perplexity, "perplexity_error": perplexity * _standard_error(losses)}


def _standard_error(values: Tensor) -> float:
    return (values.std(correction=0) / math.sqrt(len(values))).item()
