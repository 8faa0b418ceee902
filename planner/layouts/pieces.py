"""Pieces of a sequence with owners, and the sides of partitions that consist of such pieces."""

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

from ringloom.planner.partitions import Block, Ranges, Side

Chunks = list[tuple[Ranges, int]]


def cut(tokens: int, parts: int) -> list[range]:
    """Cuts tokens into consecutive ranges; the first ranges may be one token longer."""
    size, leftover = divmod(tokens, parts)
    bounds = [size * i + min(i, leftover) for i in range(parts + 1)]
    return [range(a, b) for a, b in pairwise(bounds)]


def split(positions: Ranges, parts: int) -> list[Ranges]:
    """Cuts a piece into parts with nearly equal shares of every range."""
    cuts = [cut(len(part), parts) for part in positions]
    return [
        tuple(part[c[n].start : c[n].stop] for part, c in zip(positions, cuts, strict=True))
        for n in range(parts)
    ]


def gather_ranges(pieces: Iterable[range], owners: Iterable[int], ranks: int) -> Chunks:
    """Gathers all ranges of each rank in one piece and merges consecutive ranges."""
    ranges_of = [list[range]() for _ in range(ranks)]
    non_empty = filter(lambda pair: len(pair[0]), zip(pieces, owners, strict=True))
    for rank, run in groupby(sorted(non_empty, key=lambda p: p[0].start), key=lambda p: p[1]):
        parts = [part for part, _ in run]
        bounds = [0, *(n for n, (a, b) in enumerate(pairwise(parts), 1) if a.stop < b.start)]
        for first, last in pairwise([*bounds, len(parts)]):
            ranges_of[rank].append(range(parts[first].start, parts[last - 1].stop))
    return [(tuple(parts), rank) for rank, parts in enumerate(ranges_of)]


def whole_heads(chunks: Chunks, heads: int) -> Side:
    """Returns one block per piece, with all heads."""
    return Side(tuple(Block(positions, range(heads), owner) for positions, owner in chunks))


def by_heads(chunks: Chunks, slices: Sequence[range]) -> Side:
    """Cuts each piece into head slices: block c * len(slices) + h is piece c, slice h."""
    return Side(tuple(Block(p, heads, owner) for p, owner in chunks for heads in slices))
