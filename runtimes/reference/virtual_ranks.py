"""Runs plans on virtual ranks, whose memories are connected only by moves.

The moves and attends of a step read the state at the start of the step: moves copy inputs and
transfer accumulators. Then the results of attends and the received sums are added, in node order. A
copy is deleted after its last use.
"""

from collections import defaultdict
from collections.abc import Iterator
from time import perf_counter

import numpy as np

from ringloom.planner.analysis.liveness import lifetimes
from ringloom.planner.errors import PlanError
from ringloom.planner.ir import INPUTS, TENSORS, Attend, Move, Plan
from ringloom.planner.partitions import Ints
from ringloom.runtimes.arrays import Array, sum_dtype_of
from ringloom.runtimes.recording.events import Events, Kind
from ringloom.runtimes.reference.online_softmax import attend, gradients, merge

Arrays = tuple[Array, ...]  # the arrays of a tensor: KV is (k, v), OUT is (o, lse), and so on
Place = tuple[str, int]  # tensor, block
Delivery = tuple[Place, Arrays]


class Rank:
    """The memory of one rank, which contains inputs and accumulators."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.inputs = dict[Place, Arrays]()
        self.sums = dict[Place, Arrays]()

    def read(self, place: Place, step: int) -> Arrays:
        """Returns an input; raises PlanError if the rank does not hold it."""
        if place not in self.inputs:
            raise self._missing_error("reads", place, step)
        return self.inputs[place]

    def take(self, places: list[Place], step: int) -> list[Delivery]:
        """Removes and returns the accumulators that exist; absent ones count as zero.

        Raises PlanError if none of them exists.
        """
        if not any(place in self.sums for place in places):
            raise self._missing_error("sends", places[0], step)
        return [(place, self.sums.pop(place)) for place in places if place in self.sums]

    def keep(self, place: Place, arrays: Arrays) -> None:
        """Stores an input; computes STATS when DOUT joins the OUT of the forward pass."""
        self.inputs[place] = arrays
        out, stats = (("OUT", place[1]), ("STATS", place[1]))
        if place[0] == "DOUT" and out in self.inputs and stats not in self.inputs:
            (o, lse), (dout,) = self.inputs[out], arrays
            self.inputs[stats] = lse, np.sum(dout.astype(o.dtype) * o, axis=-1)

    def add(self, place: Place, arrays: Arrays) -> None:
        """Adds to an accumulator; a missing one counts as zero."""
        if place not in self.sums:
            self.sums[place] = arrays
        elif place[0] == "OUT":
            self.sums[place] = merge(self.sums[place], arrays)
        else:
            self.sums[place] = tuple(a + b for a, b in zip(self.sums[place], arrays, strict=True))

    def _missing_error(self, action: str, place: Place, step: int) -> PlanError:
        tensor, block = place
        return PlanError(
            f"step {step}: rank {self.number} {action} {tensor} block {block},"
            " which it does not hold"
        )


class VirtualRanks:
    """All ranks of a plan; the caller stores the shards of owners in `memory` [ranks]."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.memory = [Rank(number) for number in range(plan.ranks)]
        self.scale = plan.workload.softmax_scale
        self.number = sum_dtype_of(plan.workload.dtype)
        self.events = Events()
        self._over = self._last_uses()
        self.tokens = {
            side: [b.tokens() for b in plan.partition.side(side).blocks] for side in ("q", "kv")
        }

    def run(self) -> Events:
        """Runs every step of the plan; returns the events."""
        for number in range(len(self.plan.steps)):
            self.advance(number)
        return self.events

    def advance(self, number: int) -> None:
        """Runs one step; raises PlanError for missing data."""
        step = self.plan.steps[number]

        def note(kind: Kind, rank: int, row: int, start: float, end: float) -> None:
            self.events[kind, rank, number, row] = start, end

        messages = [one for move in step.moves for one in self._depart(move, number)]
        rectangles = [one for attend in step.attends for one in self._attend(attend, number)]
        for row, (rank, posted, ended, results) in enumerate(rectangles):
            note("attend", rank, row, posted, ended)
            start = perf_counter()
            for place, arrays in results:
                self.memory[rank].add(place, arrays)
            note("merge", rank, row, start, perf_counter())
        for row, (src, rank, posted, sent, carried) in enumerate(messages):
            note("send", src, row, posted, sent)
            start = perf_counter()
            for place, arrays in carried:
                memory = self.memory[rank]
                store = memory.add if TENSORS[place[0]].accumulates else memory.keep
                store(place, arrays)
            note("receive", rank, row, posted, start)
            note("arrive", rank, row, start, perf_counter())
        for rank, place in self._over[number]:
            del self.memory[rank].inputs[place]

    def _depart(
        self, move: Move, step: int
    ) -> Iterator[tuple[int, int, float, float, list[Delivery]]]:
        """Yields (source, destination, time posted, time sent, contents) of every message."""
        rows = zip(move.blocks, move.src.tolist(), move.dst.tolist(), strict=True)
        for blocks, src, dst in rows:
            start, contents, memory = perf_counter(), list[Delivery](), self.memory[src]
            places = [
                (tensor, block) for block in _block_numbers(blocks) for tensor in move.tensors
            ]
            if move.accumulates:
                contents += memory.take(places, step)
            else:
                for place in places:
                    copies = tuple(a.copy() for a in memory.read(place, step))
                    contents.append((place, copies))
            yield src, dst, start, perf_counter(), contents

    def _attend(
        self, attend: Attend, step: int
    ) -> Iterator[tuple[int, float, float, list[Delivery]]]:
        """Yields (rank, start, end, results) of every rectangle."""
        for rank, q, kv in zip(attend.rank.tolist(), attend.q, attend.kv, strict=True):
            start = perf_counter()
            results = list(
                self._rectangle(self.memory[rank], step, _block_numbers(q), _block_numbers(kv))
            )
            yield rank, start, perf_counter(), results

    def _rectangle(
        self, memory: Rank, step: int, q: list[int], kv: list[int]
    ) -> Iterator[Delivery]:
        """Yields (o, lse) of every q block, or dq of every q block and (dk, dv) of every kv block.

        For heads of the q blocks that are not computed here, o is 0 and lse is -inf.
        """

        def read(tensor: str, blocks: list[int]) -> list[Array]:
            arrays = [memory.read((tensor, block), step) for block in blocks]
            parts = zip(*arrays, strict=True)
            return [np.concatenate(part, axis=2).astype(self.number) for part in parts]

        heads, kv_heads = self._heads_in_common(memory, step, q, kv)
        (queries,), (k, v) = read("Q", q), read("KV", kv)
        inputs = queries[:, heads], k[:, kv_heads], v[:, kv_heads]
        tokens = (
            np.concatenate([self.tokens[side][block] for block in blocks])
            for side, blocks in (("q", q), ("kv", kv))
        )
        allowed = self.plan.workload.allowed(*tokens)
        if self.plan.pass_ == "forward":
            o = np.zeros((*queries.shape[:3], v.shape[3]), self.number)
            lse = np.full(queries.shape[:3], -np.inf, self.number)
            o[:, heads], lse[:, heads] = attend(*inputs, allowed, self.scale)
            yield from self._by_block("OUT", q, o, lse)
            return
        dout, lse, rowsum = (x[:, heads] for x in (*read("DOUT", q), *read("STATS", q)))
        dq, dk, dv = map(np.zeros_like, (queries, k, v))
        dq[:, heads], *parts = gradients(*inputs, dout, lse, rowsum, allowed, self.scale)
        for whole, share in zip((dk, dv), parts, strict=True):
            np.add.at(whole.swapaxes(0, 1), kv_heads, share.swapaxes(0, 1))
        yield from self._by_block("DQ", q, dq)
        yield from self._by_block("DKV", kv, dk, dv)

    def _heads_in_common(
        self, memory: Rank, step: int, q: list[int], kv: list[int]
    ) -> tuple[Ints, Ints]:
        """Returns the indices of the query heads that both sides have, and of their KV heads."""
        slices = list[range]()
        for side, blocks in (("q", q), ("kv", kv)):
            heads = {self.plan.partition.side(side).blocks[block].heads for block in blocks}
            if len(heads) > 1:
                raise PlanError(
                    f"step {step}: one attend of rank {memory.number} has {side} blocks {blocks}"
                    f" with different head slices {sorted(map(str, heads))}"
                )
            slices += heads
        (own, shared), group = slices, self.plan.workload.group
        ends = max(own.start, shared.start * group), min(own.stop, shared.stop * group)
        common = np.arange(*ends, dtype=np.int32)
        return common - own.start, common // group - shared.start

    def _by_block(self, tensor: str, blocks: list[int], *whole: Array) -> Iterator[Delivery]:
        sizes = self.plan.side(tensor).sizes[blocks]
        parts = (np.split(x, np.cumsum(sizes)[:-1], axis=2) for x in whole)
        for block, *arrays in zip(blocks, *parts, strict=True):
            yield (tensor, block), tuple(arrays)

    def _last_uses(self) -> dict[int, list[tuple[int, Place]]]:
        """Returns the (rank, block) copies whose last use is in each step, by step."""
        last_uses = defaultdict[int, list[tuple[int, Place]]](list)
        for tensor in INPUTS[self.plan.pass_]:
            received, last = lifetimes(self.plan, tensor)
            end = np.maximum(np.maximum(received, last), 0)
            for rank, block in np.argwhere(received > -2).tolist():
                if self.plan.side(tensor).owners[block] != rank:
                    last_uses[int(end[rank, block])].append((rank, (tensor, block)))
        return last_uses


def _block_numbers(blocks: Ints) -> list[int]:
    numbers: list[int] = blocks[blocks >= 0].tolist()
    return numbers
