"""Tiles of a causal mask where all keys are gathered in sequence order."""

from collections.abc import Iterator, Sequence


def tiles(pieces: Sequence[range]) -> Iterator[tuple[slice, slice, bool]]:
    """Each piece of the queries meets all keys before it, and its own up to the diagonal."""
    first = 0
    for piece in pieces:
        rows, first = slice(first, first + len(piece)), first + len(piece)
        if piece.start:
            yield rows, slice(piece.start), False
        yield rows, slice(piece.start, piece.stop), True
