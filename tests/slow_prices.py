"""Prices of kernel calls, merges and additions, each from its definition, one at a time."""

from dataclasses import dataclass

import numpy as np

from ringloom.planner.ir import ACCUMULATORS, TENSORS, Plan
from ringloom.planner.kernel_calls import Call, Takes, rectangle_calls
from ringloom.planner.kernel_calls.runs import PLAIN
from ringloom.planner.partitions import Block, shift_ranges, sorted_positions
from ringloom.planner.workload import DTYPES
from ringloom.simulator.hardware import Hardware


def up(n: float, to: float) -> float:
    return -(-n // to) * to


def program_calls(one: Plan, qs: list[Block], kvs: list[Block], takes: Takes = PLAIN) -> list[Call]:
    """The kernel calls of a rectangle, blocks in the order of their first positions."""
    work, pieces = one.workload, one.workload.mask.region().pieces
    q, kv = ([b.positions for b in sorted(s, key=first) if b.size] for s in (qs, kvs))
    rows, columns = (
        np.concatenate([*map(sorted_positions, side), np.zeros(0, np.int64)]) for side in (q, kv)
    )
    straight = (np.diff(rows) > 0).all() and (np.diff(columns) > 0).all()
    if straight and work.allowed(rows, columns).all():
        return [Call(range(len(rows)), range(len(columns)), False)]
    aligned = [shift_ranges(part, work.offset) for part in q]
    return rectangle_calls(aligned, kv, pieces, takes=takes)


def first(block: Block) -> int:
    return min((r.start for r in block.positions), default=0)


@dataclass
class SlowPrices:
    """Prices of the rows of one plan on one machine."""

    plan: Plan
    machine: Hardware

    def per_token(self, tensor: str, arriving: bool) -> float:
        what, work = TENSORS[tensor], self.plan.workload
        wide = max(4, DTYPES[work.dtype])
        other = work.batch * wide * (what.elements(work) + what.scalars)
        kernel = DTYPES[work.dtype] * what.elements(work) + wide * what.scalars
        read = other if arriving else work.batch * kernel
        again = self.machine["attention.merge"]
        return again * (2 * other + read) / self.machine["memory.bandwidth"]

    def price(self, tensor: str, block: int, arriving: bool) -> float:
        owned = self.plan.side(tensor).blocks[block]
        return owned.size * len(owned.heads) * self.per_token(tensor, arriving)

    def per_pair(self) -> float:
        work, pass_ = self.plan.workload, self.plan.pass_
        products = {"forward": (1, 1), "backward": (3, 2)}[pass_]  # over head_dim, v_head_dim
        length = products[0] * work.head_dim + products[1] * work.v_head_dim
        share = self.machine.efficiency(pass_, length / sum(products))
        return float(2 * length * work.batch / (self.machine.peak(work.dtype) * share))

    def heads(self, q: Block, kv: Block) -> int:
        return len({h for h in q.heads if h // self.plan.workload.group in kv.heads})

    def moved(self, rows: int, columns: int, heads: int) -> float:
        """Seconds for q, out, lse or q, dout, dq, lse, delta, and k and v, or both twice.

        Of heads: K and V of a KV head are read whole, however many heads of its group there are.
        """
        work, back = self.plan.workload, self.plan.pass_ == "backward"
        own, both = DTYPES[work.dtype], work.head_dim + work.v_head_dim
        row = own * (both + back * work.head_dim) + max(4, own) * (1 + back)
        whole = up(heads, work.group) // work.group
        moved = work.batch * (heads * rows * row + whole * columns * own * both * (1 + back))
        return float(moved / self.machine["memory.bandwidth"])

    def flash(self) -> bool:
        """True if keys are split where blocks would not fill the chip, and heads share tiles."""
        work, blocks = self.plan.workload, self.machine["attention.blocks"]
        return blocks > 0 and self.plan.pass_ == "forward" and DTYPES[work.dtype] == 2

    def packed(self, rows: int, heads: int) -> float:
        """The heads in one tile: where there is one query, those that share a KV head."""
        group = self.plan.workload.group
        return heads * group / up(heads, group) if rows == 1 and self.flash() else 1

    def height(self, rows: int, heads: int) -> float:
        """The rows of one head that a call of some heads computes."""
        tile, short = self.machine.tile[0], int(self.machine["attention.short_tile_q"])
        if rows >= tile:
            return up(rows, tile)
        packed = self.packed(rows, heads)
        return min(up(rows * packed, short) / packed, tile)

    def blocks(self, rows: int, columns: int, heads: int) -> float:
        """The blocks of one head: tiles of rows, in the backward pass of columns."""
        back = self.plan.pass_ == "backward"
        tile = self.machine.tile[back]
        packed = self.packed(rows, heads)
        return up(columns if back else rows * packed, tile) / tile / packed

    def total(self, calls: int, pairs: float, blocks: float, moved: float, heads: int) -> float:
        """Seconds of calls one after the other: in waves of blocks, and prepared by the host."""
        at_once = self.machine["attention.blocks"]
        exposed = self.machine.option("attention.traffic", self.plan.pass_)
        seconds = pairs * self.per_pair() * heads + exposed * moved
        if at_once and blocks and heads:
            each, (rows, columns) = heads * self.plan.workload.batch / calls, self.machine.tile
            running = blocks * each
            if running < at_once and self.flash():
                running = max(running, min(at_once, pairs * each / rows / columns))
            seconds *= np.ceil(running / at_once) * at_once / running
        launches = self.machine.option("attention.launch", self.plan.pass_) * calls
        seconds = max(seconds, moved)
        return float(max(self.machine["attention.host"] * calls, launches + seconds))

    def kernels(self, qs: list[Block], kvs: list[Block]) -> float:
        """The calls of an emitted program, and the merging of their results."""
        mask = self.machine.option("attention.mask", self.plan.pass_)
        half = DTYPES[self.plan.workload.dtype] == 2
        takes = Takes(
            half and not mask, half and self.machine.option("attention.bottom_right") == 1
        )
        calls = program_calls(self.plan, qs, kvs, takes)
        rows = [row for call in calls for row in call.rows]
        columns = [column for call in calls for column in call.columns]
        heads = self.heads(qs[0], kvs[0])
        blocks = sum(self.blocks(len(call.rows), len(call.columns), heads) for call in calls)
        pairs = sum(self.pairs(call, heads) for call in calls)
        moved = sum(self.moved(len(call.rows), len(call.columns), heads) for call in calls)
        seconds = self.total(len(calls), pairs, blocks, moved, heads)
        again, group = len(rows) - len(set(rows)), self.plan.workload.group
        more = {"OUT": again, "DQ": again, "DKV": (len(columns) - len(set(columns))) / group}
        per_head = sum(more[t] * self.per_token(t, False) for t in ACCUMULATORS[self.plan.pass_])
        return seconds + per_head * heads

    def pairs(self, call: Call, heads: int) -> float:
        (tq, tk), (rows, columns) = self.machine.tile, (len(call.rows), len(call.columns))
        sq, sk = self.machine.skips(self.machine.tile)
        high = min(self.height(rows, heads), tq)
        looked = self.height(rows, heads) * up(columns, tk)
        mask = self.machine.option("attention.mask", self.plan.pass_)
        if call.kind == "masked" or (call.kind == "window" and mask):
            return looked + looked * mask / (self.per_pair() * max(heads, 1))

        def banded(lo: int, hi: int, width: int) -> float:
            ends = [(max(0, i + lo) // sk * sk, i + sq + hi, i) for i in range(0, rows, sq)]
            return sum(
                up(min(sq, rows - i), high) * up(min(width, up(min(width, last), sk)) - low, tk)
                for low, last, i in ends
            )

        dearer = self.machine["attention.causal"]
        if call.band is True:  # the tiles before the diagonal are as those of a full call
            late = columns - rows
            return banded(-rows, late, columns) + (dearer - 1) * banded(-rows, 0, rows)
        if call.band:
            return banded(*call.band, columns) * dearer
        return looked
