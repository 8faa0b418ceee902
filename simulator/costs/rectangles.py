"""The kernel calls of a plan's rectangles: their number, their work, and the merges between them.

Rectangles are cut into calls as in programs (`ringloom.planner.kernel_calls`). Rectangles that
differ only by a shift are cut only once, if the mask depends only on distances. If cutting all of
them would take minutes, the remaining ones count as one full call with the pairs that the mask
allows.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.analysis.tiles import tiles
from ringloom.planner.ir import Attend, Plan
from ringloom.planner.kernel_calls import Call, rectangle_calls
from ringloom.planner.kernel_calls.positions import Positions, Rectangle, count_repeated
from ringloom.planner.partitions import Ints
from ringloom.simulator.costs.kernels import Kernels
from ringloom.simulator.costs.shapes import Shapes

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]
MOST_WORK = 10**8  # rows x boxes of the mask, beyond which rectangles are not cut


class Cut(NamedTuple):
    """Sums over the calls of one rectangle, per query head."""

    calls: float
    pairs: float
    blocks: float
    queries: float  # bytes of queries and their results
    keys: float  # the same for keys
    rows: float  # of results that are merged into results of earlier calls
    columns: float  # the same for gradients of keys


class Rectangles:
    """The rectangles of one plan, and a cache of their cuts."""

    def __init__(self, plan: Plan, kernels: Kernels) -> None:
        self._kernels, self._work = kernels, 0
        self.tiles = tiles(plan)
        self._sizes = [np.append(plan.partition.side(s).sizes, 0) for s in ("q", "kv")]
        self._shapes = Shapes.of(plan.workload, plan.partition)
        self._positions = Positions(plan.workload, plan.partition)
        self._interleaved = [_interleave(*hulls) for hulls in self._positions.hulls]
        self._cuts = dict[tuple[int, bytes], Cut]()

    def of(self, node: Attend) -> Floats:
        """Returns the `Cut` of each row, one field after the other: float64 [7, rows].

        A row that differs from the previous one only by a shift is not cut again.
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
            q, kv = self._positions.chunks(node.q[at], node.kv[at])
            numbers = np.column_stack([self._shapes.rows(q, kv), heads[at]])
            differs = np.append(True, (numbers[1:] != numbers[:-1]).any(axis=1))
            cut = np.array([self._cut(numbers[n], q[n], kv[n]) for n in np.flatnonzero(differs)])
            cuts[:, at] = cut[np.cumsum(differs) - 1].T
        return cuts

    def _full(self, node: Attend) -> NDArray[np.bool_]:
        """Returns True for each row that is one full call: [rows]."""
        full = self.tiles.full(node)
        for blocks, interleaved in zip((node.q, node.kv), self._interleaved, strict=True):
            if interleaved:
                full &= (blocks >= 0).sum(axis=1) < 2
        return full

    def _cut(self, numbers: Numbers, q: Ints, kv: Ints) -> Cut:
        key = len(q), numbers.tobytes()
        if key not in self._cuts:
            self._cuts[key] = self._summary(int(numbers[-1]), *self._positions.in_order(q, kv))
        return self._cuts[key]

    def calls(self, q: Ints, kv: Ints) -> list[Call]:
        """Returns the calls of one rectangle of blocks, in the order of a program."""
        chunks = self._positions.chunks(q, kv)
        return self._calls(self._positions.rectangle(*self._positions.in_order(*chunks)))

    def _calls(self, rectangle: Rectangle) -> list[Call]:
        return rectangle_calls(*rectangle, takes=self._kernels.takes)

    def _summary(self, heads: int, q: Ints, kv: Ints) -> Cut:
        rectangle = self._positions.rectangle(q, kv)
        self._work += int(self._positions.tokens[0][q].sum()) * (len(rectangle.boxes) + 1)
        if self._work > MOST_WORK:
            return self._uncut(heads, q, kv)
        calls = self._calls(rectangle)
        work = sum(self._kernels.pairs(call, heads) for call in calls)
        merged = (
            count_repeated([call.rows for call in calls]),
            count_repeated([call.columns for call in calls]),
        )
        spans = np.array([(len(call.rows), len(call.columns)) for call in calls]).reshape(-1, 2).T
        queries, keys = (part.sum() for part in self._kernels.traffic(*spans))
        blocks = self._kernels.blocks(spans[0], spans[1], heads).sum()
        return Cut(len(calls), work, blocks, queries, keys, *merged)

    def _uncut(self, heads: int, q: Ints, kv: Ints) -> Cut:
        pairs = float(self.tiles.areas[np.ix_(q, kv)].sum())
        size = self._positions.tokens[0][q].sum(), self._positions.tokens[1][kv].sum()
        traffic = self._kernels.traffic(*size)
        return Cut(1, pairs, self._kernels.blocks(*size, heads), *traffic, 0, 0)


def _interleave(first: Numbers, last: Numbers) -> bool:
    """Returns True if the positions of any two sets interleave."""
    nonempty = np.flatnonzero(first <= last)
    order = nonempty[np.argsort(first[nonempty])]
    return bool((last[order][:-1] >= first[order][1:]).any())
