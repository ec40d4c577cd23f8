"""ReplicaModel: how long an engine takes, by a few numbers that `kvserve bench` gives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaModel:
    """An engine's times: prompts one after the other, answers side by side."""

    prefill_rate: float
    """Prompt tokens a second."""
    step_base: float
    """Seconds of a step that decodes for nobody."""
    step_per_row: float
    """Seconds that each request adds to it."""
    max_num_seqs: int = 32
    """Requests that run at once; others wait."""
    num_blocks: int = 2000
    """Blocks of prompt text that its cache remembers."""
    start_seconds: float = 20.0
    """From the decision to start one to its first request."""

    @classmethod
    def fitted(cls, *, prefill_rate: float, alone: float, crowd: float, rows: int) -> ReplicaModel:
        """The model of an engine with these figures.

        Args:
            prefill_rate: Prompt tokens a second.
            alone: Decoded tokens a second of one request.
            crowd: Decoded tokens a second of `rows` requests together.
            rows: More than 1.
        """
        one, many = 1 / alone, rows / crowd
        per_row = max(0.0, (many - one) / (rows - 1))
        return cls(prefill_rate=prefill_rate, step_base=one - per_row, step_per_row=per_row)

    def step_seconds(self, rows: int) -> float:
        """How long a step takes that decodes for so many requests."""
        return self.step_base + self.step_per_row * rows

    def prefill_seconds(self, num_tokens: int) -> float:
        """How long so many prompt tokens take."""
        return num_tokens / self.prefill_rate
