"""Pieces of a sequence with owners, and the sides of a partition built from them."""

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

from ringloom.planner.partitions import Block, Ranges, Side

Chunks = list[tuple[Ranges, int]]


def cut(tokens: int, parts: int) -> list[range]:
    """Cuts tokens into consecutive ranges of nearly equal length; the first ones are longer."""
    size, more = divmod(tokens, parts)
    ends = [size * i + min(i, more) for i in range(parts + 1)]
    return [range(a, b) for a, b in pairwise(ends)]


def split(positions: Ranges, parts: int) -> list[Ranges]:
    """Cuts a piece into parts, each with a nearly equal share of every range."""
    cuts = [cut(len(part), parts) for part in positions]
    return [
        tuple(part[c[n].start : c[n].stop] for part, c in zip(positions, cuts, strict=True))
        for n in range(parts)
    ]


def gather_ranges(pieces: Iterable[range], owners: Iterable[int], ranks: int) -> Chunks:
    """Gathers all ranges of each rank into one piece; consecutive ranges are merged."""
    held = [list[range]() for _ in range(ranks)]
    owned = filter(lambda pair: len(pair[0]), zip(pieces, owners, strict=True))
    for rank, run in groupby(sorted(owned, key=lambda p: p[0].start), key=lambda p: p[1]):
        parts = [part for part, _ in run]
        ends = [0, *(n for n, (a, b) in enumerate(pairwise(parts), 1) if a.stop < b.start)]
        for first, last in pairwise([*ends, len(parts)]):
            held[rank].append(range(parts[first].start, parts[last - 1].stop))
    return [(tuple(parts), rank) for rank, parts in enumerate(held)]


def whole_heads(chunks: Chunks, heads: int) -> Side:
    """Returns one block per piece, with all heads."""
    return Side(tuple(Block(positions, range(heads), owner) for positions, owner in chunks))


def by_heads(chunks: Chunks, slices: Sequence[range]) -> Side:
    """Cuts each piece into head slices: block c * len(slices) + h is piece c, slice h."""
    return Side(tuple(Block(p, heads, owner) for p, owner in chunks for heads in slices))
