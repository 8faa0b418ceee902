"""The kernel calls of a plan's rectangles: how many, how much work, how much merged in between.

Rectangles are cut into calls as programs cut them (see `planner.kernel_calls`); those that are
alike but for a shift, under a mask that only looks at distances, are cut once. Where kernels skip
whatever a mask hides, or rectangles are so many that cutting each would take minutes, a rectangle
counts as one call per q block that computes the kernel tiles which its mask touches, or one of all
q blocks that are shorter than a tile.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.analysis.tiles import tiles
from planner.ir import Attend, Plan
from planner.kernel_calls import Call, rectangle_calls
from planner.masks.areas import sizes
from planner.partitions import Ints, Ranges, shifted
from simulator.costs.kernel_tiles import kernel_tiles
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

    @cached_property  # zigzag on 64 ranks without `split` takes 2.7 times as long without
    def touched(self) -> Numbers:
        """Kernel tiles per head that the mask touches: [q chunks + 1, kv chunks + 1].

        The last row and column, 0, are what chunk -1 finds.
        """
        counts = kernel_tiles(self._workload, self._partition, self._kernels.tile)
        return np.pad(counts, (0, 1))

    def of(self, node: Attend) -> Floats:
        """Return the `Cut` of each row, by columns: float64 [7, rows].

        Rows that are equal but for a shift to the one that was cut before them are not cut again.
        Where kernels skip what masks hide nothing is cut.
        """
        heads = self.tiles.heads(node)
        if not self._kernels.splits:
            return self._skipping(heads, *self._chunks(node.q, node.kv))
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
        return rectangle_calls(*self._rectangle(*self._in_order(*self._chunks(q, kv))))

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
            return Cut(*self._skipping(np.array([heads]), q[None], kv[None])[:, 0])
        calls = rectangle_calls(rows, columns, boxes)
        work = sum(self._kernels.pairs(call, heads) for call in calls)
        again = _again([call.rows for call in calls]), _again([call.columns for call in calls])
        spans = np.array([(len(call.rows), len(call.columns)) for call in calls]).reshape(-1, 2).T
        queries, keys = (part.sum() for part in self._kernels.traffic(*spans))
        blocks = self._kernels.blocks(spans[0], spans[1], heads).sum()
        return Cut(len(calls), work, blocks, queries, keys, *again)

    def _skipping(self, heads: Numbers, q: Ints, kv: Ints) -> Floats:
        """Return the `Cut` of rectangles [n, a] x [n, b] of chunks: [7, n].

        Each q chunk is a call over the row's kv chunks, which computes the tiles that are touched;
        those of fewer queries than a tile are one call together.
        """
        kernels, (tq, tk) = self._kernels, self._kernels.tile
        height, width = self._tokens[0][q], self._tokens[1][kv].sum(axis=1)
        tall, short = height >= tq, np.where(height < tq, height, 0)
        joined = short.sum(axis=1)
        padded = kernels.height(joined, heads) / np.maximum(joined, 1)
        touched = self.touched[q[:, :, None], kv[:, None, :]].sum(axis=2) * tk
        pairs = (touched * np.where(tall, tq, short * padded[:, None])).sum(axis=1)
        each = kernels.blocks(height, width[:, None], heads[:, None])
        blocks = np.where(joined, kernels.blocks(joined, width, heads), 0)
        blocks = blocks + np.where(tall, each, 0).sum(axis=1)
        count = tall.sum(axis=1) + (joined > 0)
        traffic, none = kernels.traffic(height.sum(axis=1), count * width), np.zeros(len(q))
        return np.array([count, pairs, blocks, *traffic, none, none])

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
