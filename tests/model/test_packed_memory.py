"""PackedMemory: pieces that do not overlap, aligned, in few regions."""

from model.packed_memory import REGION_BYTES, PackedMemory


def test_pieces_are_aligned_and_apart():
    """Every piece starts a cache line of its own, and none overlaps another."""
    memory = PackedMemory()
    pieces = [memory.take(size) for size in (1, 63, 64, 65, 1000, 0, 7)]
    for number, piece in enumerate(pieces):
        assert piece.data_ptr() % 64 == 0
        piece.fill_(number)
    assert [set(piece.tolist()) for piece in pieces] == [{0}, {1}, {2}, {3}, {4}, set(), {6}]


def test_a_region_that_is_full_is_followed_by_another():
    """Pieces share a region until one no longer fits; a piece larger than a region has its own."""
    memory = PackedMemory()
    first, second = memory.take(100), memory.take(100)
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    large = memory.take(REGION_BYTES + 1)
    assert large.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
    assert len(large) == REGION_BYTES + 1
