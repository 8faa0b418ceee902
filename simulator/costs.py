"""What attends, merges and messages cost: seconds and bytes, row by row.

attend    one kernel call per q block of a rectangle, over the row's KV blocks; a call computes the
          live kernel tiles (see kernel_tiles) of tq x tk pairs at 4 head_dim flop per pair and
          head, 2.5 times that in the backward pass, plus the launch
add       what an attend computed joins the accumulator that is there already: the partial result
          is read as the kernel wrote it, the accumulator read and written
merge     an accumulator that arrived joins the one that is there: both are read, one is written
prologue  rowsum(dO * O) at home before a backward pass: both are read, a number per row is written

Adding to an absent accumulator is free. HBM traffic runs at the memory's full rate.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.ir import ADDS, TENSORS, Attend, Move, Plan
from planner.partitions import Ints, Side
from planner.tiles import Tiles, tiles
from planner.workload import DTYPES
from simulator.hardware import Hardware
from simulator.kernel_tiles import kernel_tiles

Floats = NDArray[np.float64]
FLOP = {"forward": 4.0, "backward": 10.0}  # per (query, key) pair, head and element of head_dim
CELLS = 1 << 22  # tiles of a node looked at at a time


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
    def seconds_per_pair(self) -> float:
        """Kernel seconds of one (query, key) pair of one head, all batch rows together."""
        work, pass_ = self.plan.workload, self.plan.pass_
        rate = self.hardware.peak(work.dtype) * self.hardware.efficiency(pass_)
        return FLOP[pass_] * work.head_dim * work.batch / rate

    @cached_property
    def seconds_per_tile(self) -> float:
        """Kernel seconds of one kernel tile of one head, all batch rows together."""
        rows, columns = self.hardware.tile
        return rows * columns * self.seconds_per_pair

    def attend(self, node: Attend) -> Floats:
        """Kernel seconds of each row, launches included: float64 [rows]."""
        launch = self.hardware["attention.launch"] * (node.q >= 0).sum(axis=1)
        seconds: Floats = launch + self._head_tiles(node) * self.seconds_per_tile
        return seconds

    @cached_property
    def _tiles(self) -> NDArray[np.integer]:
        return kernel_tiles(self.plan.workload, self.plan.partition, self.hardware.tile)

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
        table, heads = self._tiles, self.tiles.shared_heads
        if self._blocks_are_chunks:
            place = np.multiply(q, table.shape[1], dtype=np.intp) + kv
            count, shared = table.reshape(-1).take(place, mode="wrap"), heads[0, 0]
        else:
            q_side, kv_side = self._sides
            count = table[q_side.chunk[q], kv_side.chunk[kv]]
            shared = heads[q_side.slice[q], kv_side.slice[kv]]
        found: Floats = np.multiply(count, shared, dtype=np.float64)
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

    def message(self, move: Move) -> NDArray[np.int64]:
        """Bytes of each message: int64 [rows]."""
        weights = self.weights(move.tensors)
        if move.blocks.shape[1] == 1:
            return weights[move.blocks[:, 0]]
        total: NDArray[np.int64] = weights[move.blocks].sum(axis=1)
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
        work = self.plan.workload
        for name in ADDS[self.plan.pass_]:
            tensor, there = TENSORS[name], self.weights((name,))
            wide = tensor.bytes_per_token(work)
            narrow = work.batch * (
                tensor.vectors * work.head_dim * DTYPES[work.dtype]
                + tensor.scalars * max(4, DTYPES[work.dtype])
            )
            read = there if arriving else there // wide * narrow
            yield name, (2 * there + read) / self.hardware["memory.bandwidth"]

    @cached_property
    def prologue(self) -> Floats:
        """Seconds of each rank before step 0: float64 [ranks]."""
        found = np.zeros(self.plan.ranks)
        if self.plan.pass_ == "backward":
            traffic = 2 * self.plan.block_bytes("DOUT") + self.plan.block_bytes("STATS") // 2
            np.add.at(found, self.plan.partition.q.homes, traffic)
        return found / self.hardware["memory.bandwidth"]
