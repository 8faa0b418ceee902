"""Arrival steps of inputs, and the check that moves and attends read them no earlier."""

from collections.abc import Sequence

import numpy as np

from planner.analysis.marks import Marks, at_home, cells, companies, places
from planner.columns import again, present
from planner.errors import PlanError
from planner.ir import INPUTS, TENSORS, Index, Plan
from planner.partitions import Ints

NEVER = np.iinfo(np.int32).max


def arrivals(plan: Plan, tensor: str) -> Ints:
    """The first step in which each rank can read each block of an input, by `places`.

    0 for what is there from the start, NEVER where it never comes. STATS of a block are also there
    from the step on in which DOUT is, on a rank that holds its OUT.
    """
    ready = np.full(cells(plan, tensor).size, NEVER, np.int32)
    for number, move in plan.moves():
        if tensor in move.tensors:
            entries = places(plan, tensor, move.dst, move.blocks)
            ready[entries] = np.minimum(ready[entries], number + 1)
    for held in plan.start:
        if tensor in held.tensors:
            ready[places(plan, tensor, held.rank, held.blocks)] = 0
        elif tensor == "STATS" and held.tensors == ("OUT",):
            entries = places(plan, tensor, held.rank, held.blocks)
            ready[entries] = np.minimum(ready[entries], arrivals(plan, "DOUT")[entries])
    ready[at_home(plan, tensor)] = ready[cells(plan, tensor).nowhere] = 0
    return ready


def check_inputs(plan: Plan) -> None:
    """Raises PlanError unless inputs are where moves and attends read them, and come there once."""
    copies = _Copies(plan)
    for step in plan.steps:
        inputs = [move for move in step.moves if not move.accumulates]
        for move in inputs:
            copies.read(move.tensors, move.src, move.blocks)
        for attend in step.attends:
            for side, blocks in (("q", attend.q), ("kv", attend.kv)):
                copies.read(copies.attended[side], attend.rank, blocks)
        for move in inputs:
            copies.add(move.tensors, move.dst, move.blocks)
    copies.check_once()


class _Copies:
    """Where the copies of inputs are while steps go by; tensors of one company share a table."""

    def __init__(self, plan: Plan) -> None:
        self._plan, company = plan, companies(plan)
        alike = {t: (TENSORS[t].side, others) for t, others in company.items()}
        self._first = {t: next(o for o in alike if alike[o] == alike[t]) for t in alike}
        self.attended = {
            side: [t for t in INPUTS[plan.pass_] if TENSORS[t].side == side] for side in ("q", "kv")
        }
        self._here = {t: Marks(plan, t, nothing=True) for t in set(self._first.values())}
        self._came = {t: len(plan.side(t)) for t in self._here}
        for tensor, here in self._here.items():
            here.set(at_home(plan, tensor), True)
        self._out = Marks(plan, "OUT") if "STATS" in company else None
        for held in plan.start:
            if self._out and held.tensors == ("OUT",):
                self._out.set(places(plan, "OUT", held.rank, held.blocks), True)
        for held in plan.start:
            self.add(held.tensors, held.rank, held.blocks)

    def read(self, tensors: Sequence[str], rank: Ints, blocks: Ints) -> None:
        """Raises PlanError unless the blocks of some tensors are on each row's rank."""
        entries = places(self._plan, tensors[0], rank, blocks)
        for first in dict.fromkeys(self._first[t] for t in tensors):
            if not self._here[first].bits[entries].all():
                self.check_once()
                for tensor in tensors:
                    _blame_absent(self._plan, tensor)

    def add(self, tensors: Sequence[str], rank: Ints, blocks: Ints) -> None:
        """Note what arrives on each row's rank."""
        entries = places(self._plan, tensors[0], rank, blocks)
        for first in dict.fromkeys(self._first[t] for t in tensors):
            self._here[first].set(entries, True)
            self._came[first] += present(blocks)
        if self._out and "DOUT" in tensors:  # where OUT is held, STATS are made of both
            made = entries[blocks >= 0]
            made = made[self._out.bits[made]]
            self._here[self._first["STATS"]].set(made, True)
            self._came[self._first["STATS"]] += len(made)

    def check_once(self) -> None:
        """Raises PlanError if a copy came to a rank that has the block already, at any time."""
        for first, here in self._here.items():
            if np.count_nonzero(here.bits) - 1 < self._came[first]:
                _blame_second(self._plan, first)


def _blame_second(plan: Plan, tensor: str) -> None:
    side = plan.side(tensor)
    here = np.zeros((plan.ranks, len(side)), bool)
    here[side.homes, np.arange(len(side))] = True
    brought = [("start", *held.flat()) for held in plan.start if tensor in held.tensors]
    brought += [
        (f"step {n}", *np.array(move.flat())[[0, 2]])
        for n, move in plan.moves()
        if tensor in move.tensors
    ]
    if tensor == "STATS":
        brought += [("start", *h.flat()) for h in plan.start if h.tensors == ("OUT",)]
    for where, block, rank in brought:
        second = here[rank, block]
        if second.any() or (second := again(rank * len(side) + block)).any():
            at = int(np.argmax(second))
            raise PlanError(
                f"{where}: rank {rank[at]} is sent {tensor} block {block[at]} a second time"
            )
        here[rank, block] = True
    raise PlanError(f"a rank is sent {tensor} that it computes from OUT and DOUT")


def _blame_absent(plan: Plan, tensor: str) -> None:
    """Raises PlanError of the first move or attend that reads what is not there, if any does."""
    ready = arrivals(plan, tensor)
    for number, step in enumerate(plan.steps):
        for move in step.moves:
            if tensor in move.tensors:
                block, src, dst = move.flat()
                late = ready[cells(plan, tensor).flat(src, block)]
                _refuse_absent(late, number, block, src, f"{tensor} to rank {{}}", dst)
        for attend in step.attends:
            block, rank = attend.flat(TENSORS[tensor].side)
            late = ready[cells(plan, tensor).flat(rank, block)]
            _refuse_absent(late, number, block, rank, f"{tensor}")


def _refuse_absent(
    ready: Ints, number: int, block: Index, rank: Index, what: str, dst: Index | None = None
) -> None:
    late = ready > number
    if late.any():
        at = int(np.argmax(late))
        verb = "attends" if dst is None else "sends"
        what = what if dst is None else what.format(dst[at])
        comes = int(ready[at])
        when = "never comes there" if comes == NEVER else f"is there from step {comes} only"
        raise PlanError(
            f"step {number}: rank {rank[at]} {verb} {what}, but block {block[at]} {when}"
        )
