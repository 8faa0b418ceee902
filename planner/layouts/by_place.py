"""Layouts that ignore the mask: (tokens, ranks, grain) -> positions and owner of each piece.

12 tokens on the ranks A, B and C:

contiguous   A A A A B B B B C C C C     striped   A B C A B C A B C A B C
zigzag       A A B B C C C C B B A A
"""

from ringloom.planner.layouts.pieces import Chunks, cut

PIECES = {"contiguous": 1, "striped": 0, "zigzag": 2}  # contiguous pieces per rank; 0: stripes


def contiguous(tokens: int, ranks: int, grain: int = 1) -> Chunks:
    """Assigns the r-th of `ranks` consecutive pieces to rank r (Ring Attention, section 3)."""
    return [((piece,), rank) for rank, piece in enumerate(cut(tokens, ranks))]


def striped(tokens: int, ranks: int, grain: int = 1) -> Chunks:
    """Assigns token i to rank (i // grain) mod ranks (Striped Attention, section 3)."""
    period, chunks = grain * ranks, Chunks()
    for rank in range(ranks):
        first = range(rank * grain, min(tokens, (rank + 1) * grain))
        if tokens <= period * grain:  # fewer stripes than tokens per stripe: one range per stripe
            starts = range(first.start, tokens, period)
            chunks.append((tuple(range(s, min(tokens, s + grain)) for s in starts), rank))
        else:
            chunks.append((tuple(range(s, tokens, period) for s in first), rank))
    return chunks


def zigzag(tokens: int, ranks: int, grain: int = 1) -> Chunks:
    """Cuts 2 x ranks pieces and assigns the r-th from the front and from the back to rank r."""
    last = 2 * ranks - 1
    return [((piece,), min(i, last - i)) for i, piece in enumerate(cut(tokens, 2 * ranks))]
