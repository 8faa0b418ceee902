r"""Regions: a mask as a disjoint union of pieces, each a box cut by a diagonal band.

piece ::= (i0, i1, j0, j1, lo, hi)    queries i0 <= i < i1, keys j0 <= j < j1, lo <= j - i <= hi

            j0        j1
       i0   +----------+
            |\ hi      |    A box is a document or a rectangle of cells. A band is causal or
            | \\\      |    a window. All other masks are intersections and unions of boxes
            |  lo \    |    and bands.
       i1   +----------+
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]

MOST = 2**20  # documents, chunks or slices of a mask, each a piece of its region
FAR = 2**40  # stands for "unbounded"; positions stay below 2**31
CHUNK = 2**16  # index pairs processed at a time, whose arrays of 512 KB fit a cache


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Disjoint, non-empty pieces, int64 [K, 6]."""

    pieces: Ints

    @staticmethod
    def of(rows: Sequence[Sequence[int]] | Ints) -> Region:
        """Returns the region of disjoint pieces [K, 6], without empty pieces."""
        pieces = _shrink(np.array(rows, np.int64).reshape(-1, 6))
        pieces.flags.writeable = False
        return Region(pieces)

    @staticmethod
    def boxes(
        i0: ArrayLike,
        i1: ArrayLike,
        j0: ArrayLike,
        j1: ArrayLike,
        lo: ArrayLike = -FAR,
        hi: ArrayLike = FAR,
    ) -> Region:
        """Returns the region of disjoint pieces; each column is an array [K] or one number."""
        return Region.of(np.stack(np.broadcast_arrays(i0, i1, j0, j1, lo, hi), axis=-1))

    def __len__(self) -> int:
        return len(self.pieces)

    def intersect(self, other: Region) -> Region:
        """Returns the pairs in both regions."""
        pieces = [np.empty((0, 6), np.int64)]
        for left, right in _overlapping_pieces(self.pieces, other.pieces):
            pieces.append(_shrink(_intersect(self.pieces[left], other.pieces[right])))
        return Region.of(np.concatenate(pieces))

    def union(self, other: Region) -> Region:
        """Returns the pairs in either region: the smaller, and the larger without the smaller."""
        small, large = sorted((self, other), key=len)
        remainder = _subtract(large.pieces, small.pieces)
        return Region.of(np.concatenate([small.pieces, remainder]))


def overlaps(
    low: Ints, high: Ints, other_low: Ints, other_high: Ints, limit: int = CHUNK
) -> Iterator[tuple[Ints, Ints]]:
    """Yields index pairs of overlapping non-empty intervals [low, high) of two lists.

    Each item is a pair of index arrays, in the order of the first list, of about `limit` entries.
    """
    if not len(low) or not len(other_low):
        return
    order = np.argsort(other_low, kind="stable")
    # In the other list, sorted by start, the candidates for an interval [low, high) are a slice:
    # from the first running maximum of ends above `low` to the last start below `high`.
    start = np.searchsorted(np.maximum.accumulate(other_high[order]), low, side="right")
    stop = np.searchsorted(other_low[order], high, side="left")
    ends = np.cumsum(np.maximum(stop - start, 0))
    begin = 0
    while begin < len(low):
        before = ends[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + limit, side="right")))
        counts = np.diff(ends[begin:end], prepend=before)
        left = np.repeat(np.arange(begin, end), counts)
        shift = np.repeat(start[begin:end] - ends[begin:end] + counts, counts)
        right = order[np.arange(before, ends[end - 1]) + shift]
        overlap = other_high[right] > np.repeat(low[begin:end], counts)
        yield (left, right) if overlap.all() else (left[overlap], right[overlap])
        begin = end


def first_overlap(pieces: Ints) -> tuple[int, int] | None:
    """Returns the indices of two pieces [K, 6] that overlap, or None if all are disjoint."""
    for left, right in _overlapping_pieces(pieces, pieces):
        ascending = left < right
        left, right = left[ascending], right[ascending]
        overlap = np.flatnonzero(_is_non_empty(_intersect(pieces[left], pieces[right])))
        if overlap.size:
            return int(left[overlap[0]]), int(right[overlap[0]])
    return None


def _overlapping_pieces(left: Ints, right: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Yields index pairs of pieces whose rows overlap and whose columns overlap."""
    for a, b in overlaps(left[:, 0], left[:, 1], right[:, 0], right[:, 1]):
        overlap = (left[a, 2] < right[b, 3]) & (right[b, 2] < left[a, 3])
        yield a[overlap], b[overlap]


def _intersect(left: Ints, right: Ints) -> Ints:
    """Intersects each piece with the other piece of its row, perhaps empty: [K, 6]."""
    low, high = np.maximum(left, right), np.minimum(left, right)
    return np.stack([low[:, 0], high[:, 1], low[:, 2], high[:, 3], low[:, 4], high[:, 5]], axis=1)


def _is_non_empty(pieces: Ints) -> NDArray[np.bool_]:
    """Returns True for non-empty pieces: some j - i of the box is in the band."""
    i0, i1, j0, j1, lo, hi = pieces.T
    band = np.maximum(lo, j0 - i1 + 1) <= np.minimum(hi, j1 - 1 - i0)
    return np.asarray((i0 < i1) & (j0 < j1) & band)


def _shrink(pieces: Ints) -> Ints:
    """Drops empty pieces and shrinks the other boxes to the rows and columns of their bands."""
    i0, i1, j0, j1, lo, hi = pieces[_is_non_empty(pieces)].T
    top, bottom = np.maximum(i0, j0 - hi), np.minimum(i1, j1 - lo)
    left, right = np.maximum(j0, i0 + lo), np.minimum(j1, i1 + hi)
    return np.stack([top, bottom, left, right, lo, hi], axis=1)


def _subtract(pieces: Ints, cuts: Ints) -> Ints:
    """Subtracts the disjoint `cuts` from the disjoint pieces; the result is disjoint, too.

    Round r subtracts from every remnant the r-th of the cuts near its piece, so the number of
    rounds is the largest number of cuts near one piece.
    """
    pairs = [*_overlapping_pieces(pieces, cuts)]
    owner = np.concatenate([np.empty(0, np.int64), *(piece for piece, _ in pairs)])
    cut = np.concatenate([np.empty(0, np.int64), *(cut for _, cut in pairs)])
    start = np.searchsorted(owner, np.arange(len(pieces)), side="left")
    end = np.searchsorted(owner, np.arange(len(pieces)), side="right")
    done = [np.empty((0, 6), np.int64)]
    while len(pieces):
        done.append(pieces[start == end])
        pieces, start, end = (x[start < end] for x in (pieces, start, end))
        by = cuts[cut[start]]
        overlap = _is_non_empty(_intersect(pieces, by))
        parts, source = _cut_out(pieces[overlap], by[overlap])
        pieces = np.concatenate([pieces[~overlap], parts])
        start = np.concatenate([start[~overlap], start[overlap][source]]) + 1
        end = np.concatenate([end[~overlap], end[overlap][source]])
    return np.concatenate(done)


def _cut_out(pieces: Ints, cuts: Ints) -> tuple[Ints, Ints]:
    r"""Subtracts a cut from each piece, which leaves up to six parts, each with its source piece.

    +---------------+
    |     above     |      Inside the middle box the cut is a band, so the
    +----+-----+----+      remainder lies below or above it.
    |left|mid\\|rght|
    +----+-----+----+
    |     below     |
    +---------------+
    """
    middle = _intersect(pieces, cuts)
    i0, i1, j0, j1, lo, hi = pieces.T
    m0, m1, n0, n1, _, _ = middle.T
    parts = np.stack(
        [
            np.stack([i0, m0, j0, j1, lo, hi]),
            np.stack([m1, i1, j0, j1, lo, hi]),
            np.stack([m0, m1, j0, n0, lo, hi]),
            np.stack([m0, m1, n1, j1, lo, hi]),
            np.stack([m0, m1, n0, n1, lo, np.minimum(hi, cuts[:, 4] - 1)]),
            np.stack([m0, m1, n0, n1, np.maximum(lo, cuts[:, 5] + 1), hi]),
        ]
    )  # [6 parts, 6 fields, pieces]
    flat = parts.transpose(0, 2, 1).reshape(-1, 6)
    source = np.tile(np.arange(len(pieces)), 6)
    return _shrink(flat), source[_is_non_empty(flat)]


def rectangles(cells: NDArray[np.bool_]) -> Ints:
    """Covers the true cells with disjoint rectangles: runs in a row, joined with equal runs below.

    cells: [rows, columns]. Returns top, bottom, left and right, ends excluded: int64 [4, K].
    """
    edges = np.diff(np.pad(cells, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    row, left = np.nonzero(edges == 1)
    right = np.nonzero(edges == -1)[1]
    order = np.lexsort((row, right, left))
    row, left, right = row[order], left[order], right[order]
    is_continued = (np.diff(left) == 0) & (np.diff(right) == 0) & (np.diff(row) == 1)
    heads = np.flatnonzero(np.concatenate([[True], ~is_continued])[: len(row)])
    tails = np.concatenate([heads[1:], [len(row)]])[: len(heads)] - 1
    return np.stack([row[heads], row[tails] + 1, left[heads], right[heads]])
