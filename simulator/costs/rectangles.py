"""The kernel calls of a plan's rectangles: how many, how much work, how much merged in between.

Rectangles are cut into calls as programs cut them (see `planner.kernel_calls`); those that are
alike but for a shift, under a mask that only looks at distances, are cut once. Where rectangles are
so many that cutting each would take minutes, those left are not cut: each counts as one full call
of as many pairs as its mask allows.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.analysis.tiles import tiles
from planner.ir import Attend, Plan
from planner.kernel_calls import Call, rectangle_calls
from planner.masks.areas import sizes
from planner.partitions import Ints, Ranges, shifted
from simulator.costs.kernels import Kernels
from simulator.costs.shapes import Shapes

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]
WORK = 10**8  # rows x boxes of the mask beyond which rectangles are no longer cut


class Cut(NamedTuple):
    """The sums over the calls of one rectangle, per query head."""

    calls: float
    pairs: float
    blocks: float
    queries: float  # bytes that queries and their results move
    keys: float  # the same for keys
    rows: float  # of results that are merged into those of the rectangle's other calls
    columns: float  # the same for gradients of keys


class Rectangles:
    """The rectangles of one plan, and the cuts of those that were asked for so far."""

    def __init__(self, plan: Plan, kernels: Kernels) -> None:
        self._workload, self._partition = plan.workload, plan.partition
        self._kernels, self._work = kernels, 0
        self.tiles = tiles(plan)
        self._q, self._kv = plan.partition.q, plan.partition.kv
        self._tokens = [np.append(sizes(side.chunks), 0) for side in (self._q, self._kv)]
        self._sizes = [np.append(side.sizes, 0) for side in (self._q, self._kv)]
        self._chunk = [np.append(side.chunk, -1) for side in (self._q, self._kv)]
        self._shapes = Shapes.of(plan.workload, plan.partition)
        self._pieces = plan.workload.mask.region().pieces
        self._hulls = [_hulls(side.chunks) for side in (self._q, self._kv)]
        self._interleaved = [_interleave(*hulls) for hulls in self._hulls]
        self._cuts = dict[tuple[int, bytes], Cut]()  # equal ones count as work once

    def of(self, node: Attend) -> Floats:
        """Return the `Cut` of each row, by columns: float64 [7, rows].

        Rows that are equal but for a shift to the one that was cut before them are not cut again.
        """
        heads = self.tiles.heads(node)
        sides = zip(self._sizes, (node.q, node.kv), strict=True)
        rows, columns = (sizes.take(blocks.T).sum(axis=0) for sizes, blocks in sides)
        cuts, kernels = np.zeros((7, len(node))), self._kernels
        blocks = kernels.blocks(rows, columns, heads)
        cuts[:3] = np.ones(len(node)), kernels.full(rows, columns, heads), blocks
        cuts[3:5] = kernels.traffic(rows, columns)
        at = np.flatnonzero(~self._full(node))
        if len(at):
            q, kv = self._chunks(node.q[at], node.kv[at])
            numbers = np.column_stack([self._shapes.rows(q, kv), heads[at]])
            fresh = np.append(True, (numbers[1:] != numbers[:-1]).any(axis=1))
            cut = np.array([self._cut(numbers[n], q[n], kv[n]) for n in np.flatnonzero(fresh)])
            cuts[:, at] = cut[np.cumsum(fresh) - 1].T
        return cuts

    def _full(self, node: Attend) -> NDArray[np.bool_]:
        """Return which rows are one full call: [rows]."""
        full = self.tiles.full(node)
        for blocks, interleaved in zip((node.q, node.kv), self._interleaved, strict=True):
            if interleaved:
                full &= (blocks >= 0).sum(axis=1) < 2
        return full

    def _cut(self, numbers: Numbers, q: Ints, kv: Ints) -> Cut:
        key = len(q), numbers.tobytes()
        if key not in self._cuts:
            self._cuts[key] = self._summary(int(numbers[-1]), *self._in_order(q, kv))
        return self._cuts[key]

    def calls(self, q: Ints, kv: Ints) -> list[Call]:
        """Return the calls of one rectangle of blocks, in the order of a program."""
        return self._calls(*self._rectangle(*self._in_order(*self._chunks(q, kv))))

    def _calls(self, q: list[Ranges], kv: list[Ranges], boxes: Numbers) -> list[Call]:
        return rectangle_calls(q, kv, boxes, windows=self._kernels.windows)

    def _chunks(self, *sides: Ints) -> list[Ints]:
        """Return the chunks of blocks of both sides, by columns in memory."""
        return [chunk.take(blocks.T).T for chunk, blocks in zip(self._chunk, sides, strict=True)]

    def _in_order(self, *sides: Ints) -> list[Ints]:
        """Return the chunks of both sides that are not empty, ordered by first positions."""
        chosen = list[Ints]()
        for chunks, tokens, (first, _) in zip(sides, self._tokens, self._hulls, strict=True):
            kept = chunks[tokens[chunks] > 0]
            chosen.append(kept[np.argsort(first[kept])])
        return chosen

    def _summary(self, heads: int, q: Ints, kv: Ints) -> Cut:
        rows, columns, boxes = self._rectangle(q, kv)
        self._work += int(self._tokens[0][q].sum()) * (len(boxes) + 1)
        if self._work > WORK:
            return self._uncut(heads, q, kv)
        calls = self._calls(rows, columns, boxes)
        work = sum(self._kernels.pairs(call, heads) for call in calls)
        again = _again([call.rows for call in calls]), _again([call.columns for call in calls])
        spans = np.array([(len(call.rows), len(call.columns)) for call in calls]).reshape(-1, 2).T
        queries, keys = (part.sum() for part in self._kernels.traffic(*spans))
        blocks = self._kernels.blocks(spans[0], spans[1], heads).sum()
        return Cut(len(calls), work, blocks, queries, keys, *again)

    def _uncut(self, heads: int, q: Ints, kv: Ints) -> Cut:
        pairs = float(self.tiles.areas[np.ix_(q, kv)].sum())
        size = self._tokens[0][q].sum(), self._tokens[1][kv].sum()
        traffic = self._kernels.traffic(*size)
        return Cut(1, pairs, self._kernels.blocks(*size, heads), *traffic, 0, 0)

    def _rectangle(self, q: Ints, kv: Ints) -> tuple[list[Ranges], list[Ranges], Numbers]:
        """Return the positions of both sides, and the mask's pieces that they may meet."""
        offset, chunks = self._workload.offset, self._kv.chunks
        rows = [shifted(self._q.chunks[c], offset) for c in q.tolist()]
        columns = [chunks[c] for c in kv.tolist()]
        i0, i1, j0, j1, lo, hi = self._pieces.T
        (first, last), (first_key, last_key) = self._hulls
        a, b = first[q].min() + offset, last[q].max() + offset
        c, d = first_key[kv].min(), last_key[kv].max()
        near = (i0 <= b) & (a < i1) & (j0 <= d) & (c < j1) & (lo <= d - a) & (c - b <= hi)
        return rows, columns, self._pieces[near]


def _hulls(chunks: Sequence[Ranges]) -> Numbers:
    """Return the lowest and the highest position of each set, 0 and -1 for none: [2, sets]."""
    ends = [
        (min((r[0] for r in chunk), default=0), max((r[-1] for r in chunk), default=-1))
        for chunk in chunks
    ]
    return np.array(ends, np.int64).T


def _interleave(first: Numbers, last: Numbers) -> bool:
    """True if any two sets have positions in between each other's."""
    kept = np.flatnonzero(first <= last)
    order = kept[np.argsort(first[kept])]
    return bool((last[order][:-1] >= first[order][1:]).any())


def _again(spans: Sequence[range]) -> int:
    """Count the numbers of some ranges that are in an earlier one, too."""
    covered = np.zeros(max((span.stop for span in spans), default=0), np.bool_)
    for span in spans:
        covered[span.start : span.stop : span.step] = True
    return sum(map(len, spans)) - int(covered.sum())
