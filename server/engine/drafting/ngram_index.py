"""NgramIndex: where in a text its last tokens stood before, for prompt look-up decoding.

Every pair of neighbouring tokens leads to the place where it stood last, and each place to the
one before. It grows with its text, a bounded number of tokens at a time, and holds no tensor.
Source: https://github.com/apoorvumang/prompt-lookup-decoding (the idea).
"""

from __future__ import annotations

from collections.abc import Sequence

_MAX_CANDIDATES = 8
_LONGEST_MATCH = 8
_NOWHERE = -1


class NgramIndex:
    """The pairs of one growing text, each with the places where it ends."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, int], int] = {}
        self._earlier: list[int] = []
        """For each position, where the pair that ends there ended before."""

    def __len__(self) -> int:
        """How many tokens of the text are taken in."""
        return len(self._earlier)

    def update(self, token_ids: Sequence[int], *, most: int) -> bool:
        """Take in tokens that were appended, at most so many of them.

        Returns:
            Whether the whole text is known now.
        """
        start = len(self._earlier)
        stop = min(len(token_ids), start + most)
        if start == 0 and stop:
            self._earlier.append(_NOWHERE)  # the first token ends no pair
            start = 1
        for position in range(start, stop):
            pair = (token_ids[position - 1], token_ids[position])
            self._earlier.append(self._last.get(pair, _NOWHERE))
            self._last[pair] = position
        return len(self._earlier) == len(token_ids)

    def continuation(self, token_ids: Sequence[int], count: int) -> list[int]:
        """The tokens that followed when the text last ended like this.

        Args:
            token_ids: The text, wholly taken in by `update`.
            count: How many tokens are wanted.

        Returns:
            `count` tokens, or none if the last two tokens stand nowhere else. Where the earlier
            place runs into the end of the text, the text is taken to repeat itself.
        """
        place = self._longest_match(token_ids)
        if place == _NOWHERE:
            return []
        period = len(token_ids) - 1 - place
        return [token_ids[place + 1 + i % period] for i in range(count)]

    def _longest_match(self, token_ids: Sequence[int]) -> int:
        """Where the longest repetition of the text's end ends; of equal ones the latest."""
        if len(token_ids) < 3:
            return _NOWHERE
        end, best, best_length = len(token_ids) - 1, _NOWHERE, 0
        place = self._earlier[end]
        for _ in range(_MAX_CANDIDATES):
            if place == _NOWHERE or best_length == _LONGEST_MATCH:
                break
            length = _match_length(token_ids, end, place)
            if length > best_length:
                best, best_length = place, length
            place = self._earlier[place]
        return best


def _match_length(token_ids: Sequence[int], end: int, place: int) -> int:
    """How many tokens up to `end` equal those up to `place`, which is before it."""
    length = 0
    while (
        length < _LONGEST_MATCH
        and length <= place
        and token_ids[end - length] == token_ids[place - length]
    ):
        length += 1
    return length
