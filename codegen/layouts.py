"""layouts   which rank holds which tokens and heads, as the small functions that programs contain.

A layout is a list of pieces, each its positions as a few ranges and its home rank. The functions
are written into emitted programs word for word; lowering runs them and compares the pieces with
the plan's partition before it relies on one.
"""

from itertools import pairwise

import numpy as np

from codegen.rows import Flags, Ints

Pieces = list[tuple[tuple[range, ...], int]]


def cut(tokens: int, parts: int) -> list[range]:
    """Consecutive ranges of nearly equal length; the remainder goes to the first ones."""
    size, more = divmod(tokens, parts)
    ends = [size * i + min(i, more) for i in range(parts + 1)]
    return [range(a, b) for a, b in pairwise(ends)]


def contiguous(tokens: int, ranks: int) -> Pieces:
    """Rank r holds the r-th of `ranks` consecutive pieces."""
    return [((piece,), rank) for rank, piece in enumerate(cut(tokens, ranks))]


def zigzag(tokens: int, ranks: int) -> Pieces:
    """Of 2 x ranks consecutive pieces, rank r holds the r-th from the front and from the back."""
    last = 2 * ranks - 1
    pieces = enumerate(cut(tokens, 2 * ranks))
    return [((piece,), min(i, last - i)) for i, piece in pieces]


def striped(tokens: int, ranks: int, grain: int = 1) -> Pieces:
    """Token i lives on rank (i // grain) mod ranks."""
    period = grain * ranks
    starts = [range(rank * grain, tokens, period) for rank in range(ranks)]
    if grain == 1:
        return [((tokens_,), rank) for rank, tokens_ in enumerate(starts)]
    return [
        (tuple(range(s, min(tokens, s + grain)) for s in stripes), rank)
        for rank, stripes in enumerate(starts)
    ]


def in_groups(pieces: Pieces, group: int) -> Pieces:
    """The pieces of a layout over groups, each cut once more between the ranks of its group."""
    found = []
    for positions, home in pieces:
        cuts = [(part, cut(len(part), group)) for part in positions]
        for member in range(group):
            own = tuple(part[c[member].start : c[member].stop] for part, c in cuts)
            found.append((own, home * group + member))
    return found


def positions_of(piece: tuple[range, ...]) -> Ints:
    """The positions of a piece, ascending."""
    parts = [np.arange(p.start, p.stop, p.step) for p in piece]
    return np.sort(np.concatenate([*parts, np.arange(0)]))


def owned(pieces: Pieces, ranks: int) -> Ints:
    """The pieces at home on each rank: [ranks, most of one rank], -1 where there are fewer."""
    held: list[list[int]] = [[] for _ in range(ranks)]
    for number, (_, home) in enumerate(pieces):
        held[home].append(number)
    width = max(map(len, held))
    return np.array([own + [-1] * (width - len(own)) for own in held], np.int32)


def bounds(pieces: Pieces) -> tuple[Ints, Ints]:
    """First position of each piece and one past its last; both 0 where a piece is empty."""
    parts = [[p for p in piece if p] for piece, _ in pieces]
    first = [min((p[0] for p in piece), default=0) for piece in parts]
    past = [max((p[-1] + 1 for p in piece), default=0) for piece in parts]
    return np.array(first), np.array(past)


def head_slices(
    heads: int,
    group_size: int,
    ranks: int,
) -> tuple[list[range], list[range]]:
    """Query heads dealt to `ranks` ranks, and KV heads cut wherever one of those slices begins;
    `group_size` query heads share a KV head."""
    q = [heads_ for heads_ in cut(heads, ranks) if heads_]
    edges = {s.start // group_size for s in q} | {-(-s.stop // group_size) for s in q}
    return q, [range(a, b) for a, b in pairwise(sorted(edges))]


def shared_heads(q: list[range], kv: list[range], group_size: int) -> Flags:
    """Which query slices and KV slices have heads in common: [q slices, kv slices]."""
    low = np.maximum.outer([s.start for s in q], [s.start * group_size for s in kv])
    high = np.minimum.outer([s.stop for s in q], [s.stop * group_size for s in kv])
    return np.asarray(low < high)


def slices_used(shared: Flags, ranks: int) -> tuple[Ints, Ints]:
    """The query slice and the KV slices that each rank of a group works on, -1 for none."""
    q_uses = np.full((ranks, 1), -1)
    kv_uses = np.full((ranks, int(shared.sum(axis=1).max())), -1)
    for rank, row in enumerate(shared):
        q_uses[rank, 0] = rank
        kv_uses[rank, : row.sum()] = np.flatnonzero(row)
    return q_uses, kv_uses


def live_pieces(q: Pieces, kv: Pieces, offset: int, boxes: Ints) -> Flags:
    """Which pieces see each other: [q pieces, kv pieces].

    boxes: [n, 6], queries i0 <= i < i1 and keys j0 <= j < j1 with lo <= j - i <= hi, where i is
    the position + offset.
    """
    first, past = (bound[:, None] for bound in bounds(q))
    begin, end = (bound[None, :] for bound in bounds(kv))
    live = np.zeros((len(q), len(kv)), bool)
    for i0, i1, j0, j1, lo, hi in boxes:
        a, b = np.maximum(first + offset, i0), np.minimum(past + offset, i1)
        c, d = np.maximum(begin, j0), np.minimum(end, j1)
        live |= (a < b) & (c < d) & (a + lo < d) & (c < b + hi)
    return live & (first < past) & (begin < end)
