"""Arrival steps of inputs, and the check that moves and attends read them no earlier."""

import numpy as np

from planner.analysis.marks import attended_blocks, places
from planner.columns import again
from planner.errors import PlanError
from planner.ir import HELD, INPUTS, TENSORS, Attend, Index, Plan
from planner.partitions import Ints

NEVER = np.iinfo(np.int32).max


def arrivals(plan: Plan, tensor: str) -> Ints:
    """The first step in which each rank can read each block of an input, by `places`.

    0 for what is there from the start, NEVER where it never comes. STATS of a block are also there
    from the step on in which DOUT is, on a rank that holds its OUT. Raises PlanError when a copy
    comes to a rank that has the block already, at any time: a rank gets a block once.
    """
    ready, known = _at_start(plan, tensor)
    flat = ready.reshape(-1)
    for number, move in plan.moves():
        if tensor in move.tensors:
            flat[places(plan, tensor, move.dst, move.blocks)] = number + 1
            known += int((move.blocks >= 0).sum())
    if int((ready[:, :-1] != NEVER).sum()) < known:
        _blame_second(plan, tensor)
    ready[:, -1] = 0  # what block -1 finds
    return flat


def _at_start(plan: Plan, tensor: str) -> tuple[Ints, int]:
    """The table of arrivals without any move, and how many copies should be in it."""
    side = plan.side(tensor)
    ready = np.full((plan.ranks, len(side) + 1), NEVER, np.int32)
    ready[side.homes, np.arange(len(side))] = 0
    known = len(side)
    for held in plan.start:
        if tensor in held.tensors:
            block, rank = held.flat()
            ready[rank, block] = 0
            known += len(block)
    if tensor == "STATS" and (left := [h for h in plan.start if h.tensors == ("OUT",)]):
        dout = arrivals(plan, "DOUT").reshape(ready.shape)
        for held in left:
            block, rank = held.flat()
            ready[rank, block] = np.minimum(ready[rank, block], dout[rank, block])
            known += int((dout[rank, block] != NEVER).sum())
    return ready, known


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


def check_inputs(plan: Plan) -> None:
    """Raises PlanError unless the inputs of every move and attend are where they are read."""
    ready = {tensor: arrivals(plan, tensor) for tensor in HELD[plan.pass_]}
    for number, step in enumerate(plan.steps):
        for move in step.moves:
            if move.accumulates:
                continue
            entries = places(plan, move.tensors[0], move.src, move.blocks)
            for tensor in move.tensors:
                if (ready[tensor][entries] > number).any():
                    _blame_absent(plan, tensor, ready[tensor])
        for attend in step.attends:
            _check_reads(plan, number, attend, ready)


def _check_reads(plan: Plan, number: int, attend: Attend, ready: dict[str, Ints]) -> None:
    entries = {
        side: places(plan, tensor, attend.rank, attended_blocks(attend, tensor))
        for side, tensor in (("q", "Q"), ("kv", "KV"))
    }
    for tensor in INPUTS[plan.pass_]:
        if (ready[tensor][entries[TENSORS[tensor].side]] > number).any():
            _blame_absent(plan, tensor, ready[tensor])


def _blame_absent(plan: Plan, tensor: str, ready: Ints) -> None:
    """Say which move or attend reads what is not there."""
    table = ready.reshape(plan.ranks, -1)
    for number, step in enumerate(plan.steps):
        for move in step.moves:
            if tensor in move.tensors:
                block, src, dst = move.flat()
                _refuse_absent(table, number, block, src, f"{tensor} to rank {{}}", dst)
        for attend in step.attends:
            block, rank = attend.flat(TENSORS[tensor].side)
            _refuse_absent(table, number, block, rank, f"{tensor}")


def _refuse_absent(
    ready: Ints, number: int, block: Index, rank: Index, what: str, dst: Index | None = None
) -> None:
    late = ready[rank, block] > number
    if late.any():
        at = int(np.argmax(late))
        verb = "attends" if dst is None else "sends"
        what = what if dst is None else what.format(dst[at])
        comes = int(ready[rank[at], block[at]])
        when = "never comes there" if comes == NEVER else f"is there from step {comes} only"
        raise PlanError(
            f"step {number}: rank {rank[at]} {verb} {what}, but block {block[at]} {when}"
        )
