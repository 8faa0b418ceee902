"""What attends, merges and messages cost: seconds and bytes, row by row.

attend    kernel calls (`simulator.calls.kernels`) at 4 head_dim flop per pair and head, 2.5 times
          that in the backward pass. Where programs split: the calls that a rectangle is cut into
          and the merging of their results. Where kernels skip whatever a mask hides: one call per
          q block of a rectangle, over the row's KV blocks, that computes the live kernel tiles
          (see kernel_tiles) of tq x tk pairs
add       what an attend computed joins the accumulator that is there already: the partial result
          is read as the kernel wrote it, the accumulator read and written
merge     an accumulator that arrived joins the one that is there: both are read, one is written;
          partial outputs, which several kernels merge where nothing fuses them, take
          `attention.merge` times that
prologue  rowsum(dO * O) at home before a backward pass: both are read, a number per row is written

Adding to an absent accumulator is free. HBM traffic runs at the memory's full rate.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.analysis.batches import attends
from planner.analysis.messages import brings_home
from planner.analysis.tiles import Tiles, tiles
from planner.columns import rowwise
from planner.ir import ADDS, TENSORS, Attend, Move, Plan
from planner.kernel_calls import Call
from planner.partitions import Ints, Side
from planner.workload import DTYPES
from simulator.calls.kernel_tiles import kernel_tiles
from simulator.calls.kernels import Kernels
from simulator.calls.rectangles import Rectangles
from simulator.hardware import Hardware

Floats = NDArray[np.float64]
CELLS = 1 << 22  # tiles of a node looked at at a time
KEPT = 1 << 16  # rows of a plan up to which all attends are priced at once


@dataclass(frozen=True, eq=False)
class Costs:
    """The prices of one plan's rows on one hardware."""

    plan: Plan
    hardware: Hardware

    @cached_property
    def tiles(self) -> Tiles:
        """Exact pairs per tile, without any quantisation."""
        return tiles(self.plan)

    @cached_property
    def kernels(self) -> Kernels:
        """What one kernel call costs."""
        return Kernels(self.hardware, self.plan.workload, self.plan.pass_)

    @cached_property
    def seconds_per_pair(self) -> float:
        """Kernel seconds of one (query, key) pair of one head, all batch rows together."""
        return self.kernels.seconds_per_pair

    def attend(self, node: Attend) -> Floats:
        """Seconds of each row, launches included: float64 [rows]."""
        known = self._together.get(id(node))
        return self._rows(node) if known is None else known

    @cached_property
    def _together(self) -> dict[int, Floats]:
        """The same for every attend of a plan of moderate size, many steps at a time."""
        found = dict[int, Floats]()
        if self.plan.rows <= KEPT:
            for some, _, joined in attends(self.plan):
                ends = np.cumsum([len(node) for node in some])[:-1]
                seconds = np.split(self._rows(joined), ends)
                found |= zip(map(id, some), seconds, strict=True)
        return found

    def _rows(self, node: Attend) -> Floats:
        return self._split(node) if self.kernels.splits else self._whole(node)

    def _whole(self, node: Attend) -> Floats:
        """One kernel per q block, that skips what the mask hides."""
        rows, columns = self.kernels.tile
        per_row, _ = self.hardware.overheads(self.plan.pass_)
        launch = self.kernels.launch * (node.q >= 0).sum(axis=1)
        pairs = self._head_tiles(node) * (rows * columns)
        if per_row:
            pairs = pairs + per_row * self._tokens(node) * self._heads(node)
        seconds: Floats = launch + pairs * self.seconds_per_pair
        return seconds

    def _split(self, node: Attend) -> Floats:
        """The calls that a program cuts each rectangle into, and the merging of their results."""
        if self._blocks_are_chunks and node.q.shape[1] == node.kv.shape[1] == 1:
            place = np.multiply(node.q[:, 0], self._pairs.shape[1], dtype=np.intp) + node.kv[:, 0]
            return self._pairs.reshape(-1).take(place, mode="wrap")
        return self._price(self.rectangles.of(node), self._heads(node))

    def _price(self, cuts: Floats, heads: NDArray[np.int64]) -> Floats:
        """Seconds of cut rectangles, as `Rectangles` counts them, for some heads each: [rows]."""
        calls, pairs, rows, columns = cuts
        seconds = self.kernels.launch * calls + pairs * heads * self.seconds_per_pair
        again = {"OUT": rows, "DQ": rows, "DKV": columns / self.plan.workload.group}
        for tensor in ADDS[self.plan.pass_]:
            seconds = seconds + again[tensor] * heads * self._per_token(tensor, arriving=False)
        found: Floats = seconds
        return found

    @cached_property
    def _pairs(self) -> Floats:
        """The same for every pair of one block each, where blocks are chunks: [q, kv blocks]."""
        heads = self.tiles.shared_heads[0, :1]
        return self.rectangles.of_pairs(lambda cuts: self._price(cuts, heads))

    def calls(self, rank: int) -> Iterator[tuple[Call, int]]:
        """The kernel calls of one rank in plan order, each with its query heads."""
        for _, node in self.plan.attends():
            heads = self._heads(node)
            for row in np.flatnonzero(node.rank == rank):
                for call in self.rectangles.calls(node.q[row], node.kv[row]):
                    yield call, int(heads[row])

    @cached_property
    def rectangles(self) -> Rectangles:
        """The kernel calls of every row."""
        return Rectangles(self.plan, self.kernels, self._touched)

    def _heads(self, node: Attend) -> NDArray[np.int64]:
        """Query heads that each row computes: all of its q blocks, and of its kv blocks, agree."""
        if self.tiles.one_slice:
            return np.full(len(node), self.tiles.shared_heads[0, 0])
        q, kv = (
            side.slice[blocks[np.arange(len(node)), (blocks >= 0).argmax(axis=1)]]
            for side, blocks in zip(self._sides, (node.q, node.kv), strict=True)
        )
        heads: NDArray[np.int64] = self.tiles.shared_heads[q, kv]
        return heads

    def _tokens(self, node: Attend) -> NDArray[np.int64]:
        """Queries of each row, in whole kernel tiles."""
        rows = self.kernels.tile[0]
        sizes = np.append(-(-self._sides[0].sizes // rows) * rows, 0)
        total: NDArray[np.int64] = sizes[node.q].sum(axis=1)
        return total

    @cached_property
    def _tiles(self) -> NDArray[np.integer]:
        return kernel_tiles(self.plan.workload, self.plan.partition, self.kernels.tile)

    @cached_property
    def _blocks_are_chunks(self) -> bool:
        """True for layouts by tokens: block numbers index the tables, heads are all the same."""
        plain = all(np.array_equal(side.chunk, np.arange(len(side))) for side in self._sides)
        return plain and self.tiles.one_slice

    def _head_tiles(self, node: Attend) -> Floats:
        """Kernel tiles x query heads of each row."""
        if node.q.shape[1] == node.kv.shape[1] == 1:
            return self._of_pairs(node.q[:, 0], node.kv[:, 0])
        height = max(1, CELLS // (node.q.shape[1] * node.kv.shape[1]))
        slabs = [slice(at, at + height) for at in range(0, len(node), height)]
        return np.concatenate([self._of_rectangles(node.q[at], node.kv[at]) for at in slabs])

    def _of_rectangles(self, q: Ints, kv: Ints) -> Floats:
        count = self._of_pairs(q[:, :, None], kv[:, None, :])
        count[np.broadcast_to((q < 0)[:, :, None] | (kv < 0)[:, None, :], count.shape)] = 0.0
        found: Floats = count.sum(axis=(1, 2))
        return found

    def _of_pairs(self, q: Ints, kv: Ints) -> Floats:
        """Kernel tiles x query heads of (q block, kv block) pairs, broadcast together."""
        heads = self.tiles.shared_heads
        if self.tiles.one_slice:
            return self._touched(q, kv) * float(heads[0, 0])
        q_side, kv_side = self._sides
        found: Floats = self._touched(q, kv) * heads[q_side.slice[q], kv_side.slice[kv]]
        return found

    def _touched(self, q: Ints, kv: Ints) -> Floats:
        """Kernel tiles per head of (q block, kv block) pairs, broadcast together."""
        table, (q_side, kv_side) = self._tiles, self._sides
        if self._blocks_are_chunks:
            place = np.multiply(q, table.shape[1], dtype=np.intp) + kv
            count = table.reshape(-1).take(place, mode="wrap")
        else:
            count = table[q_side.chunk[q], kv_side.chunk[kv]]
        found: Floats = count.astype(np.float64)
        return found

    @property
    def _sides(self) -> tuple[Side, Side]:
        return self.plan.partition.q, self.plan.partition.kv

    @cached_property
    def _block_bytes(self) -> dict[tuple[str, ...], NDArray[np.int64]]:
        return {}

    def weights(self, tensors: tuple[str, ...]) -> NDArray[np.int64]:
        """Bytes of each block of some tensors together, and 0 for block -1: int64 [blocks + 1]."""
        if tensors not in self._block_bytes:
            blocks = sum(self.plan.block_bytes(t) for t in tensors)
            self._block_bytes[tensors] = np.append(blocks, 0)
        return self._block_bytes[tensors]

    def message(self, number: int, move: Move) -> NDArray[np.int64]:
        """Bytes of each message of a move of step `number`, finished results rounded: [rows]."""
        weights = self.weights(move.tensors)
        total: NDArray[np.int64] = rowwise(np.add, weights[move.blocks])
        if move.accumulates and (home := brings_home(self.plan, number, move)).any():
            rounded = np.append(self.plan.block_bytes(move.tensors[0], finished=True), 0)
            total = np.where(home, rowwise(np.add, rounded[move.blocks]), total)
        return total

    @cached_property
    def add(self) -> dict[str, Floats]:
        """Per accumulator, seconds to add a kernel's result for each block, 0 for block -1."""
        return dict(self._traffic(arriving=False))

    @cached_property
    def merge(self) -> dict[str, Floats]:
        """Per accumulator, seconds to merge an arrival of each block, 0 for block -1."""
        return dict(self._traffic(arriving=True))

    def _traffic(self, arriving: bool) -> Iterator[tuple[str, Floats]]:
        for name in ADDS[self.plan.pass_]:
            tokens = self.weights((name,)) // TENSORS[name].bytes_per_token(self.plan.workload)
            yield name, (tokens * self._per_token(name, arriving)).astype(np.float64)

    def _per_token(self, name: str, arriving: bool) -> float:
        """Seconds of adding to an accumulator, per token and head."""
        work, tensor = self.plan.workload, TENSORS[name]
        wide = tensor.bytes_per_token(work)
        narrow = work.batch * (
            tensor.vectors * work.head_dim * DTYPES[work.dtype]
            + tensor.scalars * max(4, DTYPES[work.dtype])
        )
        again = self.hardware.option("attention.merge") if tensor.scalars else 1.0
        read = wide if arriving else narrow
        return again * (2 * wide + read) / self.hardware["memory.bandwidth"]

    @cached_property
    def prologue(self) -> Floats:
        """Seconds of each rank before step 0: float64 [ranks]."""
        found = np.zeros(self.plan.ranks)
        if self.plan.pass_ == "backward":
            traffic = 2 * self.plan.block_bytes("DOUT") + self.plan.block_bytes("STATS") // 2
            np.add.at(found, self.plan.partition.q.homes, traffic)
        return found / self.hardware["memory.bandwidth"]
