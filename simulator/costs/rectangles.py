"""The kernel calls of a plan's rectangles: how many, how much work, how much merged in between.

Rectangles are cut into calls as programs cut them (see `planner.kernel_calls`); those that are
alike but for a shift, under a mask that only looks at distances, are cut once. Where rectangles are
so many that cutting each would take minutes, a rectangle counts as one call per q block that
computes the kernel tiles which its mask touches.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.analysis.tiles import parts, tiles
from planner.columns import rowwise
from planner.ir import Attend, Plan
from planner.kernel_calls import Call, rectangle_calls
from planner.masks.areas import kinds, sizes
from planner.partitions import Ints, Ranges, Side, shifted
from simulator.costs.kernel_tiles import kernel_tiles
from simulator.costs.kernels import Kernels
from simulator.costs.shapes import Shapes

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]
WORK = 10**8  # rows x boxes of the mask beyond which rectangles are no longer cut
PARTIAL = 1  # tiles of which the mask allows some pairs and not all


class Cut(NamedTuple):
    """The sums over the calls of one rectangle, per query head."""

    calls: float
    pairs: float  # overheads included
    blocks: float
    rows: float  # of results that are merged into those of the rectangle's other calls
    columns: float  # the same for gradients of keys


class Rectangles:
    """The rectangles of one plan, and the cuts of those that were asked for so far."""

    def __init__(self, plan: Plan, kernels: Kernels) -> None:
        self._plan, self._kernels, self._work = plan, kernels, 0
        self._q, self._kv = plan.partition.q, plan.partition.kv
        self._extents = sizes(self._q.chunks), sizes(self._kv.chunks)
        self._shapes = Shapes.of(plan.workload, plan.partition)
        self._pieces = plan.workload.mask.region().pieces
        self._interleaved = _interleave(self._q.chunks), _interleave(self._kv.chunks)
        self._cuts = dict[tuple[object, ...], Cut]()  # equal ones count as work once

    @cached_property  # kernels that skip ask for it in every step
    def touched(self) -> Numbers:
        """Kernel tiles per head that the mask touches: [q chunks, kv chunks]."""
        return kernel_tiles(self._plan.workload, self._plan.partition, self._kernels.tile)

    def of(self, node: Attend) -> Floats:
        """Return the `Cut` of each row, by columns: float64 [5, rows]."""
        q, kv = _chunks(self._q, node.q), _chunks(self._kv, node.kv)
        rows, columns = map(_tokens, self._extents, (q, kv))
        whole, table = np.ones(len(node), np.bool_), tiles(self._plan)
        for batch, a, b in parts(len(node), q.shape[1], kv.shape[1]):
            full = table.full(node.q[batch, a, None], node.kv[batch, None, b])
            whole[batch] &= rowwise(np.logical_and, rowwise(np.logical_and, full, axis=2))
        for chunks, interleaved in zip((q, kv), self._interleaved, strict=True):
            if interleaved:
                whole &= (chunks >= 0).sum(axis=1) < 2
        cuts = np.zeros((5, len(node)))
        cuts[:3] = self._whole(rows, columns)
        cut = np.flatnonzero(~whole)
        if not cut.size:
            return cuts
        both = np.concatenate([q[cut], kv[cut]], axis=1)
        _, at, which = np.unique(both, axis=0, return_index=True, return_inverse=True)
        distinct = [self._cut(q[row], kv[row]) for row in cut[at]]
        cuts[:, cut] = np.array(distinct, np.float64).reshape(-1, 5)[which.reshape(-1)].T
        return cuts

    def _cut(self, q: Ints, kv: Ints) -> Cut:
        chunks = self._in_order(q, kv)
        key = self._shapes.key(*chunks)
        if key not in self._cuts:
            self._cuts[key] = self._summary(*chunks)
        return self._cuts[key]

    def _whole(self, rows: Numbers, columns: Numbers) -> Floats:
        """Return the first fields of the `Cut` of full calls, broadcast together: [3, ...]."""
        pairs, blocks = (f(rows, columns) for f in (self._kernels.full, self._kernels.blocks))
        return np.array(np.broadcast_arrays(1.0, pairs, blocks))

    def full(self) -> Floats:
        """Return (calls, pairs, blocks) of a full call per pair of chunks: [3, q, kv chunks]."""
        (heights, row), (widths, column) = (
            np.unique(extents, return_inverse=True) for extents in self._extents
        )
        return self._whole(heights[:, None], widths)[:, row[:, None], column]

    def partial(self) -> tuple[NDArray[np.intp], NDArray[np.intp], Floats]:
        """Return (q chunk, kv chunk, cut [5]) of each pair of which the mask hides a part."""
        q, kv = np.nonzero(kinds(tiles(self._plan).areas, *self._extents) == PARTIAL)
        keys = self._shapes.keys(q, kv)
        _, at, which = np.unique(keys, return_index=True, return_inverse=True)
        pairs = zip(q[at].tolist(), kv[at].tolist(), strict=True)
        cuts = [self._summary((a,), (b,)) for a, b in pairs]
        return q, kv, np.array(cuts, np.float64).reshape(-1, 5).T[:, which]

    def calls(self, q: Ints, kv: Ints) -> list[Call]:
        """Return the calls of one rectangle of blocks, in the order of a program."""
        chunks = self._in_order(_chunks(self._q, q), _chunks(self._kv, kv))
        return rectangle_calls(*self._rectangle(*chunks))

    def _in_order(self, q: Ints, kv: Ints) -> tuple[list[int], list[int]]:
        """Return the chunks of both sides that are not empty, ordered by first positions."""
        (_, first), (_, other) = self._shapes.q, self._shapes.kv
        rows = {c for c in q.tolist() if c >= 0 and self._q.chunks[c]}
        columns = {c for c in kv.tolist() if c >= 0 and self._kv.chunks[c]}
        return sorted(rows, key=first.item), sorted(columns, key=other.item)

    def _summary(self, q: Sequence[int], kv: Sequence[int]) -> Cut:
        rows, columns, boxes = self._rectangle(q, kv)
        height = sum(len(r) for ranges in rows for r in ranges)
        self._work += height * (len(boxes) + 1)
        if self._work > WORK:
            tq, tk = self._kernels.tile
            pairs = int(self.touched[np.ix_(q, kv)].sum()) * tq * tk
            blocks = sum(int(self._extents[1][c]) for c in kv)
            blocks = self._kernels.blocks(height, blocks)
            return Cut(len(q), pairs + self._kernels.full(height, 0), blocks, 0, 0)
        calls = rectangle_calls(rows, columns, boxes)
        work = sum(self._kernels.pairs(call) for call in calls)
        again = _again([call.rows for call in calls]), _again([call.columns for call in calls])
        spans = ((len(call.rows), len(call.columns)) for call in calls)
        blocks = sum(self._kernels.blocks(*span) for span in spans)
        return Cut(len(calls), work, blocks, *again)

    def _rectangle(
        self, q: Sequence[int], kv: Sequence[int]
    ) -> tuple[list[Ranges], list[Ranges], Numbers]:
        """Return the positions of both sides, and the mask's pieces that they may meet."""
        rows = [shifted(self._q.chunks[c], self._plan.workload.offset) for c in q]
        columns = [self._kv.chunks[c] for c in kv]
        i0, i1, j0, j1, lo, hi = self._pieces.T
        (a, b), (c, d) = _hull(rows), _hull(columns)
        near = (i0 <= b) & (a < i1) & (j0 <= d) & (c < j1) & (lo <= d - a) & (c - b <= hi)
        return rows, columns, self._pieces[near]


def _chunks(side: Side, blocks: Ints) -> Ints:
    """Return the chunk of each block, -1 for none."""
    chunks: Ints = np.where(blocks < 0, -1, side.chunk[blocks])
    return chunks


def _tokens(extents: Numbers, chunks: Ints) -> Numbers:
    """Count the tokens of each row of chunks, -1 for none: [rows]."""
    tokens: Numbers = rowwise(np.add, np.append(extents, 0)[chunks])
    return tokens


def _interleave(chunks: Sequence[Ranges]) -> bool:
    """True if any two sets have positions in between each other's."""
    hulls = sorted(_hull([chunk]) for chunk in chunks if chunk)
    return any(low[1] >= high[0] for low, high in pairwise(hulls))


def _hull(chunks: Sequence[Ranges]) -> tuple[int, int]:
    ranges = [r for chunk in chunks for r in chunk]
    return min(r[0] for r in ranges), max(r[-1] for r in ranges)


def _again(spans: Sequence[range]) -> int:
    """Count the numbers of some ranges that are in an earlier one, too."""
    covered = np.zeros(max((span.stop for span in spans), default=0), np.bool_)
    for span in spans:
        covered[span.start : span.stop : span.step] = True
    return sum(map(len, spans)) - int(covered.sum())
