"""The kernel calls of every row of an attend: how many, how much work, how much merged in between.

A rectangle in which everything is seen is one call. Others are cut into calls as programs cut them
(see `planner.kernel_calls`); rectangles that are alike but for a shift, under a mask that only
looks at distances, are cut once. Where rectangles are so many that cutting each would take minutes,
a rectangle counts as one call per q block that computes the kernel tiles which its mask touches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.analysis.tiles import Tiles, tiles
from planner.ir import Attend, Plan
from planner.kernel_calls import Call, rectangle_calls
from planner.masks import region_of
from planner.partitions import Ranges, Side, shifted
from simulator.calls.kernels import Kernels
from simulator.calls.shapes import Index, Shapes

Floats = NDArray[np.float64]
CELLS = 1 << 22  # tiles looked at at a time
WORK = 10**8  # rows x boxes of the mask beyond which rectangles are no longer cut


class Cut(NamedTuple):
    """What the calls of one rectangle come to, per query head."""

    calls: float
    pairs: float  # overheads included
    rows: float  # of results that are merged into those of the rectangle's other calls
    columns: float  # the same for gradients of keys


@dataclass(eq=False)
class Rectangles:
    """The rectangles of one plan, with what was found out about them so far."""

    plan: Plan
    kernels: Kernels
    touched: Callable[[Any, Any], Floats]  # kernel tiles per head of block pairs
    spent: int = 0
    _cuts: dict[tuple[object, ...], Cut] = field(default_factory=dict)
    _keys: NDArray[np.int64] = field(default_factory=lambda: np.full(1, -1))  # ascending
    _pairs: Floats = field(default_factory=lambda: np.zeros((4, 1)))  # their cuts

    def of(self, node: Attend) -> Floats:
        """The `Cut` of each row, by columns: float64 [4, rows]."""
        q, kv = node.q, node.kv
        height = max(1, CELLS // (q.shape[1] * kv.shape[1]))
        slabs = [slice(at, at + height) for at in range(0, len(node), height)]
        find = self._of if self._tiles.one_slice else self._of_positions
        return np.concatenate([find(q[at], kv[at]) for at in slabs], axis=1)

    def _of_positions(self, q: Index, kv: Index) -> Floats:
        """The same, found once for rows of the same positions, of which only heads differ."""
        at, which = self._alike(q, kv)
        return self._of(q[at], kv[at])[:, which]

    def _alike(self, q: Index, kv: Index) -> tuple[Index, Index]:
        """One row of each that are of the same positions, and which of these each row is like."""
        sides = zip(self._sides, (q, kv), strict=True)
        chunks = [np.where(blocks < 0, -1, side.chunk[blocks]) for side, blocks in sides]
        _, at, which = np.unique(
            np.concatenate(chunks, axis=1), axis=0, return_index=True, return_inverse=True
        )
        return at, which.reshape(-1)

    def of_pairs(self, price: Callable[[Floats], Floats]) -> Floats:
        """What `price` makes of the cuts [4, n] of all pairs of one block each: [q, kv blocks].

        For plans in which every block has its own positions, so that blocks and chunks agree.
        """
        rows, columns = (len(side) for side in self._sides)
        table, height = np.empty((rows, columns)), max(1, CELLS // max(1, columns))
        for low in range(0, rows, height):
            high = min(rows, low + height)
            q, kv = (
                np.repeat(np.arange(low, high), columns),
                np.tile(np.arange(columns), high - low),
            )
            cuts = self._of(q[:, None], kv[:, None])
            table[low:high] = price(cuts).reshape(-1, columns)
        table.flags.writeable = False
        return table

    def _of(self, q: Index, kv: Index) -> Floats:
        rows, columns = self._tokens(self._sides[0], q), self._tokens(self._sides[1], kv)
        found = np.zeros((4, len(q)))
        found[0], found[1] = 1.0, self.kernels.full(rows, columns)
        area = self._area(q, kv)
        partial = (area > 0) & (area < rows * columns)
        if q.shape[1] > 1 or kv.shape[1] > 1:
            partial |= self._apart(q, 0) | self._apart(kv, 1)
        some = np.flatnonzero(partial)
        if len(some):
            found[:, some] = self._cut_all(q[some], kv[some])
        return found

    def _tokens(self, side: Side, blocks: Index) -> Floats:
        sizes = np.append(side.sizes, 0).astype(np.float64)
        found: Floats = sizes[blocks[:, 0]] if blocks.shape[1] == 1 else sizes[blocks].sum(axis=1)
        return found

    def _area(self, q: Index, kv: Index) -> Floats:
        """Allowed pairs per head of each rectangle."""
        areas, (one, other) = self._tiles.areas, self._sides
        if q.shape[1] == kv.shape[1] == 1:
            return areas[one.chunk[q[:, 0]], other.chunk[kv[:, 0]]].astype(np.float64)
        left, right = one.chunk[q][:, :, None], other.chunk[kv][:, None, :]
        area = np.where((q >= 0)[:, :, None] & (kv >= 0)[:, None, :], areas[left, right], 0)
        found: Floats = area.sum(axis=(1, 2)).astype(np.float64)
        return found

    def _apart(self, blocks: Index, side: int) -> NDArray[np.bool_]:
        """Whether the blocks of a row may interleave, so that they are not one range of tokens."""
        several = (blocks >= 0).sum(axis=1) > 1
        found: NDArray[np.bool_] = several & self._interleaved[side]
        return found

    def _cut_all(self, q: Index, kv: Index) -> Floats:
        """The cuts of some rows, each distinct one made once."""
        if q.shape[1] == kv.shape[1] == 1:
            return self._cut_pairs(q, kv)
        at, which = self._alike(q, kv)
        cuts = np.array([self._cut(q[i], kv[i]) for i in at]).T
        found: Floats = cuts[:, which]
        return found

    def _cut_pairs(self, q: Index, kv: Index) -> Floats:
        """The same for rectangles of one block each way, of which there may be millions."""
        one, other = self._sides
        keys = self._shapes.keys(one.chunk[q[:, 0]], other.chunk[kv[:, 0]])
        place = np.searchsorted(self._keys, keys)
        lacking = self._keys[np.minimum(place, len(self._keys) - 1)] != keys
        if lacking.any():
            some = np.flatnonzero(lacking)
            new, at = np.unique(keys[some], return_index=True)
            cuts = np.array([self._cut(q[i], kv[i]) for i in some[at]]).T
            order = np.argsort(merged := np.concatenate([self._keys, new]))
            self._keys = merged[order]
            self._pairs = np.concatenate([self._pairs, cuts], axis=1)[:, order]
            place = np.searchsorted(self._keys, keys)
        found: Floats = self._pairs[:, place]
        return found

    def _cut(self, q: Index, kv: Index) -> Cut:
        a, b = q[q >= 0], kv[kv >= 0]
        chunks = self._sorted(0, a), self._sorted(1, b)
        key = self._shapes.key(*chunks)
        if key not in self._cuts:
            self._cuts[key] = self._make(chunks, a, b)
        return self._cuts[key]

    def _sorted(self, side: int, blocks: Index) -> tuple[int, ...]:
        """Chunks of some blocks in the order of their first positions, which is free to choose."""
        first = self._first[side]
        found = {c for c in self._sides[side].chunk[blocks].tolist() if first[c] >= 0}
        return tuple(sorted(found, key=first.__getitem__))

    def _make(self, chunks: tuple[tuple[int, ...], ...], q: Index, kv: Index) -> Cut:
        sides = zip(self._sides, chunks, strict=True)
        ranges, others = ([side.chunks[c] for c in numbers] for side, numbers in sides)
        boxes = self._boxes(ranges, others)
        rows = sum(len(r) for part in ranges for r in part)
        self.spent += rows * (len(boxes) + 1)
        if self.spent > WORK:
            tq, tk = self.kernels.tile
            touched = float(self.touched(q[:, None], kv[None, :]).sum()) * tq * tk
            return Cut(len(q), touched + self.kernels.one(rows, 0), 0, 0)
        return summary(self.kernels, self._calls(ranges, others, boxes))

    def calls(self, q: Index, kv: Index) -> list[Call]:
        """The calls of one rectangle of blocks, in the order in which a program makes them."""
        one, other = self._sides
        ranges = [one.chunks[c] for c in self._sorted(0, q[q >= 0])]
        others = [other.chunks[c] for c in self._sorted(1, kv[kv >= 0])]
        return self._calls(ranges, others, self._boxes(ranges, others))

    def _calls(
        self, q: Sequence[Ranges], kv: Sequence[Ranges], boxes: NDArray[np.int64]
    ) -> list[Call]:
        aligned = [shifted(positions, self.plan.workload.offset) for positions in q]
        return rectangle_calls(aligned, kv, boxes)

    def _boxes(self, q: Sequence[Ranges], kv: Sequence[Ranges]) -> NDArray[np.int64]:
        """The mask's pieces that a rectangle may meet."""
        pieces = region_of(self.plan.workload.mask).pieces
        if len(pieces) == 1:
            return pieces
        i0, i1, j0, j1, lo, hi = pieces.T
        (a, b), (c, d) = _hull(q, self.plan.workload.offset), _hull(kv, 0)
        near = (i0 <= b) & (a < i1) & (j0 <= d) & (c < j1) & (lo <= d - a) & (c - b <= hi)
        found: NDArray[np.int64] = pieces[near]
        return found

    @property
    def _sides(self) -> tuple[Side, Side]:
        return self.plan.partition.q, self.plan.partition.kv

    @cached_property
    def _first(self) -> tuple[list[int], ...]:
        """The first position of each chunk of both sides, -1 for those without any."""
        return tuple(
            [min((r.start for r in chunk), default=-1) for chunk in side.chunks]
            for side in self._sides
        )

    @cached_property
    def _tiles(self) -> Tiles:
        return tiles(self.plan)

    @cached_property
    def _shapes(self) -> Shapes:
        return Shapes.of(self.plan.workload, self.plan.partition)

    @cached_property
    def _interleaved(self) -> tuple[bool, bool]:
        first, second = (interleave(side.chunks) for side in self._sides)
        return first, second


def summary(kernels: Kernels, calls: Sequence[Call]) -> Cut:
    """What some calls of one rectangle come to."""
    rows = sum(len(call.rows) for call in calls) - _union([call.rows for call in calls])
    columns = sum(len(call.columns) for call in calls) - _union([call.columns for call in calls])
    return Cut(len(calls), kernels.pairs(calls), max(0, rows), columns)


def interleave(chunks: Sequence[Ranges]) -> bool:
    """Whether any two blocks of different positions have positions in between each other's."""
    hulls = sorted(_hull([chunk], 0) for chunk in chunks if chunk)
    return any(low[1] >= high[0] for low, high in pairwise(hulls))


def _hull(chunks: Sequence[Ranges], shift: int) -> tuple[int, int]:
    ranges = [r for chunk in chunks for r in chunk]
    return min(r[0] for r in ranges) + shift, max(r[-1] for r in ranges) + shift


def _union(spans: Sequence[range]) -> int:
    """How many numbers some ranges cover together."""
    if any(span.step > 1 for span in spans):
        covered = np.zeros(max(span.stop for span in spans), np.bool_)
        for span in spans:
            covered[span.start : span.stop : span.step] = True
        return int(covered.sum())
    total, end = 0, 0
    for span in sorted(spans, key=lambda span: span.start):
        total += max(0, span.stop - max(span.start, end))
        end = max(end, span.stop)
    return total
