"""What the window drops, against the rule told one token at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cache.window import AttentionWindow


@given(
    st.integers(2, 12).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size - 1))),
    st.integers(0, 6),
)
def test_a_full_window_drops_its_oldest_tokens_together(sizes: tuple[int, int], sinks: int):
    """A list that grows by a token, and drops when it is full, says the same at every token."""
    size, stride = sizes
    window = AttentionWindow(size=size, sinks=sinks, stride=stride, moves_sinks=True)
    held: list[int] = []
    slides = []
    for position in range(100):
        if len(held) == sinks + size:
            del held[sinks : sinks + stride]
            slides.append(position)
        held.append(position)
        dropped = window.num_dropped(position)
        assert held == [*range(min(sinks, position + 1)), *range(sinks + dropped, position + 1)]
        assert len(held) <= window.capacity
    for position in range(90 - size - sinks):
        following = next(slide for slide in slides if slide > position)
        assert window.num_before_slide(position) == following - position
