"""server.api.transport.chance: a stream of random bytes that another process can repeat."""

from __future__ import annotations

import pytest

from server.api.transport.chance import Chance


def test_one_secret_is_one_stream():
    """The same secret gives the same draws in the same order, another one others."""
    one, same, other = Chance(b"a", 0), Chance(b"a", 5), Chance(b"b", 0)
    draws = [[each.token(8) for _ in range(100)] for each in (one, same, other)]
    assert draws[0] == draws[1]
    assert len({*draws[0], *draws[2]}) == 200


@pytest.mark.parametrize("count", [1, 8, 53, 64])
def test_bits_fill_their_range(count):
    """A number of so many bits may be anything below their power of two."""
    chance = Chance(b"a", 0)
    drawn = [chance.bits(count) for _ in range(200)]
    assert max(drawn) < 1 << count
    assert max(drawn) >= 1 << (count - 1)


def test_new_ones_differ():
    """Nobody meets the same secret twice."""
    assert Chance.new().token(16) != Chance.new().token(16)
