r"""Regions: a mask as a disjoint union of pieces, each a box cut by a diagonal band.

piece ::= (i0, i1, j0, j1, lo, hi)    queries i0 <= i < i1, keys j0 <= j < j1, lo <= j - i <= hi

            j0        j1
       i0   +----------+
            |\ hi      |    A box alone is a document or a run of blocks, a band alone is
            | \\\      |    causal or a window; all other masks are intersections and
            |  lo \    |    unions of these.
       i1   +----------+
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]

MOST = 2**20  # documents, chunks or slices of a mask: a region has a piece of each
FAR = 2**40  # stands for "unbounded"; positions stay below 2**31
CHUNK = 2**16  # pairs processed at a time: temporaries of 512 KB fit a cache


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Disjoint, non-empty pieces, int64 [K, 6]."""

    pieces: Ints

    @staticmethod
    def of(rows: Sequence[Sequence[int]] | Ints) -> Region:
        """Returns the region of disjoint pieces, dropping empty ones; rows: [K, 6]."""
        pieces = _alive(np.array(rows, np.int64).reshape(-1, 6))
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
        """Returns the region of disjoint pieces, given by columns: numbers or [K] each."""
        return Region.of(np.stack(np.broadcast_arrays(i0, i1, j0, j1, lo, hi), axis=-1))

    def __len__(self) -> int:
        return len(self.pieces)

    def intersect(self, other: Region) -> Region:
        """Returns the pairs in both regions."""
        pieces = [np.empty((0, 6), np.int64)]
        for left, right in _neighbours(self.pieces, other.pieces):
            pieces.append(_alive(_meet(self.pieces[left], other.pieces[right])))
        return Region.of(np.concatenate(pieces))

    def union(self, other: Region) -> Region:
        """Returns the pairs in either region: cuts the smaller out of the larger, then adds it."""
        small, large = sorted((self, other), key=len)
        rest = _difference(large.pieces, small.pieces)
        return Region.of(np.concatenate([small.pieces, rest]))


def overlaps(
    low: Ints, high: Ints, other_low: Ints, other_high: Ints, limit: int = CHUNK
) -> Iterator[tuple[Ints, Ints]]:
    """Yields index pairs of overlapping non-empty intervals [low, high) of two lists.

    They come as pairs of index arrays, in order of the first list, about `limit` at a time.
    """
    if not len(low) or not len(other_low):
        return
    order = np.argsort(other_low, kind="stable")
    # Sorted by start, the candidates for an interval are one slice: it begins at the first
    # interval whose running maximum end exceeds our start, and ends where starts reach our end.
    start = np.searchsorted(np.maximum.accumulate(other_high[order]), low, side="right")
    stop = np.searchsorted(other_low[order], high, side="left")
    ends = np.cumsum(np.maximum(stop - start, 0))
    at = 0
    while at < len(low):
        before = ends[at - 1] if at else 0
        upto = max(at + 1, int(np.searchsorted(ends, before + limit, side="right")))
        counts = np.diff(ends[at:upto], prepend=before)
        left_at = np.repeat(np.arange(at, upto), counts)
        shift = np.repeat(start[at:upto] - ends[at:upto] + counts, counts)
        right_at = order[np.arange(before, ends[upto - 1]) + shift]
        hit = other_high[right_at] > np.repeat(low[at:upto], counts)
        yield (left_at, right_at) if hit.all() else (left_at[hit], right_at[hit])
        at = upto


def first_overlap(pieces: Ints) -> tuple[int, int] | None:
    """Returns the numbers of two pieces [K, 6] that share a pair, or None if all are disjoint."""
    for left, right in _neighbours(pieces, pieces):
        later = left < right
        left, right = left[later], right[later]
        hit = np.flatnonzero(_is_alive(_meet(pieces[left], pieces[right])))
        if hit.size:
            return int(left[hit[0]]), int(right[hit[0]])
    return None


def _neighbours(left: Ints, right: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Yields index pairs of pieces whose rows overlap and whose columns overlap."""
    for left_at, right_at in overlaps(left[:, 0], left[:, 1], right[:, 0], right[:, 1]):
        a, b = left[left_at], right[right_at]
        hit = (a[:, 2] < b[:, 3]) & (b[:, 2] < a[:, 3])
        yield left_at[hit], right_at[hit]


def _meet(left: Ints, right: Ints) -> Ints:
    """Intersects pieces with pieces, one by one; results may be empty. [K, 6] each."""
    low, high = np.maximum(left, right), np.minimum(left, right)
    return np.stack([low[:, 0], high[:, 1], low[:, 2], high[:, 3], low[:, 4], high[:, 5]], axis=1)


def _is_alive(pieces: Ints) -> NDArray[np.bool_]:
    """Returns True for non-empty pieces: a box has every j - i between its far corners."""
    i0, i1, j0, j1, lo, hi = pieces.T
    band = np.maximum(lo, j0 - i1 + 1) <= np.minimum(hi, j1 - 1 - i0)
    return np.asarray((i0 < i1) & (j0 < j1) & band)


def _alive(pieces: Ints) -> Ints:
    """Drops empty pieces and shrinks the other boxes to the rows and columns in the band."""
    kept = pieces[_is_alive(pieces)]
    i0, i1, j0, j1, lo, hi = kept.T
    top, bottom = np.maximum(i0, j0 - hi), np.minimum(i1, j1 - lo)
    left, right = np.maximum(j0, i0 + lo), np.minimum(j1, i1 + hi)
    return np.stack([top, bottom, left, right, lo, hi], axis=1)


def _difference(pieces: Ints, cuts: Ints) -> Ints:
    """Subtracts the disjoint `cuts` from the disjoint pieces; the result is disjoint, too.

    Round r subtracts from every remnant the r-th of the cuts near its piece, so the number of
    rounds is the largest number of cuts near one piece.
    """
    near = [*_neighbours(pieces, cuts)]
    owner = np.concatenate([np.empty(0, np.int64), *(left_at for left_at, _ in near)])
    cut = np.concatenate([np.empty(0, np.int64), *(right_at for _, right_at in near)])
    at = np.searchsorted(owner, np.arange(len(pieces)), side="left")
    end = np.searchsorted(owner, np.arange(len(pieces)), side="right")
    done = [np.empty((0, 6), np.int64)]
    while len(pieces):
        done.append(pieces[at == end])
        pieces, at, end = (x[at < end] for x in (pieces, at, end))
        by = cuts[cut[at]]
        hit = _is_alive(_meet(pieces, by))
        parts, source = _fragments(pieces[hit], by[hit])
        pieces = np.concatenate([pieces[~hit], parts])
        at = np.concatenate([at[~hit], at[hit][source]]) + 1
        end = np.concatenate([end[~hit], end[hit][source]])
    return np.concatenate(done)


def _fragments(pieces: Ints, cuts: Ints) -> tuple[Ints, Ints]:
    r"""Subtracts from each piece its cut, into up to six pieces, each with its source piece.

    +---------------+
    |     above     |      Inside the middle box the cut is a band, so the
    +----+-----+----+      remainder lies below or above it.
    |left|mid\\|rght|
    +----+-----+----+
    |     below     |
    +---------------+
    """
    middle = _meet(pieces, cuts)
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
    return _alive(flat), source[_is_alive(flat)]


def rectangles(cells: NDArray[np.bool_]) -> Ints:
    """Covers the true cells by disjoint rectangles: runs in a row, joined with equal runs below.

    cells: [rows, columns]; result: int64 [4, K], each (top, bottom, left, right), ends excluded.
    """
    edges = np.diff(np.pad(cells, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    row, left = np.nonzero(edges == 1)
    right = np.nonzero(edges == -1)[1]
    order = np.lexsort((row, right, left))
    row, left, right = row[order], left[order], right[order]
    same = (np.diff(left) == 0) & (np.diff(right) == 0) & (np.diff(row) == 1)
    heads = np.flatnonzero(np.concatenate([[True], ~same])[: len(row)])
    tails = np.concatenate([heads[1:], [len(row)]])[: len(heads)] - 1
    return np.stack([row[heads], row[tails] + 1, left[heads], right[heads]])
