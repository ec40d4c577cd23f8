"""FormCost: what a new token costs in each form of attention, and what must be kept for it.

Arithmetic on sizes, per head and layer; it computes no attention. The counts are those of the
matrix products (a multiplication and an addition are two operations), which is where time goes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class FormSizes:
    """The sizes that costs depend on."""

    tokens: int
    """n, the tokens so far, the new one included."""
    head_dim: int = 64
    """D."""
    window: int = 256
    """w, what a local window holds; also the reach of blocks and strides."""
    sinks: int = 4
    """k, tokens kept at the beginning, or global ones."""
    random: int = 192
    """r, tokens that a query of BigBird sees at random."""
    rank: int = 256
    """R, the keys that are left of a low-rank form."""
    hidden: int = 64
    """A, the hidden layer of additive scores."""

    @property
    def seen(self) -> int:
        """min(n, w): what a window shows."""
        return min(self.tokens, self.window)


Count = Callable[[FormSizes], int]


@dataclass(frozen=True, kw_only=True, slots=True)
class FormCost:
    """One line of the table."""

    form: str
    growth: str
    """How operations for a new token grow, in words of the field."""
    memory: str
    """How the numbers grow that are kept from one token to the next."""
    operations: Count
    """Operations for the new token."""
    numbers: Count
    """Numbers kept for it."""


def _products(keys: int, sizes: FormSizes) -> int:
    """Operations of one query: a score for each key, and the weighted mean of the values."""
    return 4 * keys * sizes.head_dim


def _pairs(keys: int, sizes: FormSizes) -> int:
    """Numbers of a key and a value each."""
    return 2 * keys * sizes.head_dim


def _strided(sizes: FormSizes) -> int:
    """Keys that the strided pattern shows: the last w, and every w-th one before."""
    return sizes.seen + max(0, sizes.tokens - sizes.window) // sizes.window


def _sunk(sizes: FormSizes) -> int:
    return min(sizes.tokens, sizes.window + sizes.sinks)


def _big_bird(sizes: FormSizes) -> int:
    return min(sizes.tokens, sizes.window + sizes.sinks + sizes.random)


FORMS = (
    FormCost(
        form="recomputing everything",
        growth="O(n^2 D)",
        memory="none",
        operations=lambda s: s.tokens * _products(s.tokens, s),
        numbers=lambda _: 0,
    ),
    FormCost(
        form="full, with a cache",
        growth="O(n D)",
        memory="O(n D)",
        operations=lambda s: _products(s.tokens, s),
        numbers=lambda s: _pairs(s.tokens, s),
    ),
    FormCost(
        form="additive, with a cache",
        growth="O(n (A + D))",
        memory="O(n (A + D))",
        operations=lambda s: 2 * s.tokens * (s.hidden + s.head_dim),
        numbers=lambda s: s.tokens * (s.hidden + s.head_dim),
    ),
    FormCost(
        form="local window",
        growth="O(w D)",
        memory="O(w D)",
        operations=lambda s: _products(s.seen, s),
        numbers=lambda s: _pairs(s.seen, s),
    ),
    FormCost(
        form="window and sinks",
        growth="O((w + k) D)",
        memory="O((w + k) D)",
        operations=lambda s: _products(_sunk(s), s),
        numbers=lambda s: _pairs(_sunk(s), s),
    ),
    FormCost(
        form="strided",
        growth="O((w + n/w) D)",
        memory="O(n D)",
        operations=lambda s: _products(_strided(s), s),
        numbers=lambda s: _pairs(s.tokens, s),
    ),
    FormCost(
        form="global, window and random",
        growth="O((k + w + r) D)",
        memory="O(n D)",
        operations=lambda s: _products(_big_bird(s), s),
        numbers=lambda s: _pairs(s.tokens, s),
    ),
    FormCost(
        form="low-rank (encoders)",
        growth="O(R D)",
        memory="O(R D)",
        operations=lambda s: _products(s.rank, s),
        numbers=lambda s: _pairs(s.rank, s),
    ),
    FormCost(
        form="linear, as a recurrence",
        growth="O(D^2)",
        memory="O(D^2)",
        operations=lambda s: 4 * s.head_dim * s.head_dim,
        numbers=lambda s: s.head_dim * s.head_dim + s.head_dim,
    ),
)
"""In the order of the lesson."""


def cost_table(sizes: FormSizes) -> str:
    """All forms as a table in Markdown, for these sizes."""
    lines = [
        "| form | a new token | memory | operations | numbers kept |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {cost.form} | {cost.growth} | {cost.memory} "
        f"| {cost.operations(sizes):,} | {cost.numbers(sizes):,} |"
        for cost in FORMS
    ]
    return "\n".join(lines)
