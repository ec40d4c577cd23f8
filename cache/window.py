"""AttentionWindow: which tokens of a text stay in the cache when only so many may.

Xiao et al., "Efficient Streaming Language Models with Attention Sinks" (arXiv:2309.17453): the
first tokens of a text, on which models put the weight they need nowhere else, and the last ones.
Integers only; the scheduler asks it, and the manager carries out what it says.

    tokens of the text   0 .. sinks | ............ dropped ............ | .. at most `size` ..
    in the region        0 .. sinks |                                   | .. at most `size` ..
    turned as position   dropped .. |                                   | as in the text

When the window is full, its oldest `stride` tokens are dropped together. What a token sees then
follows from its place in the text alone, whatever the chunks it was computed in.

Positions are those within the cache, as in the paper: a query is as far from a sink as if the
dropped tokens had never been, so that no distance is longer than the cache, however long the text.
The tokens of the window keep the positions they have in the text, as only distances count. It is
the sinks that move: after each slide they are computed anew, in a forward pass of a few tokens, at
positions just before the window's. A model whose positions are learned vectors cannot move them;
there the sinks stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionWindow:
    """How many tokens stay, all whole blocks."""

    size: int
    """Of the last tokens, the most that are kept."""
    sinks: int
    """Of the first tokens, those that are kept for ever."""
    stride: int
    """Tokens that are dropped at a time, fewer than `size`."""
    moves_sinks: bool
    """Whether sinks are computed anew after each slide, at positions just before the window's."""

    @property
    def capacity(self) -> int:
        """Tokens in the cache at most."""
        return self.sinks + self.size

    def num_dropped(self, position: int) -> int:
        """Tokens behind the sinks that the token at a position of the text sees no more."""
        excess = position + 1 - self.capacity
        return max(0, -(-excess // self.stride) * self.stride)

    def num_before_slide(self, position: int) -> int:
        """How many tokens, from this one on, see the same beginning of the window."""
        return self.capacity + self.num_dropped(position) - position
