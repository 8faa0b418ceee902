"""Arrival steps of inputs, and the check that moves and attends read them no earlier."""

from collections.abc import Iterable, Iterator

import numpy as np

from planner.analysis.copies import Copies, Rows
from planner.analysis.marks import Marks, at_owner, cells, groups, places
from planner.columns import again, flat, present
from planner.errors import PlanError
from planner.ir import HELD, Plan
from planner.partitions import Ints

NEVER = np.iinfo(np.int32).max


def arrivals(plan: Plan, tensor: str) -> Ints:
    """The first step in which each rank can read each block of an input, by `places`.

    0 for what is there from the start, NEVER where it never comes.
    """
    copies = Copies(plan, tensor)
    ready = np.full(cells(plan, tensor).size, NEVER, np.int32)
    for number in reversed(range(len(plan.steps) + 1)):
        for rank, blocks, _ in copies.readable(number):
            ready[places(plan, tensor, rank, blocks)] = number
    ready[at_owner(plan, tensor)] = ready[cells(plan, tensor).nowhere] = 0
    return ready


def check_inputs(plan: Plan) -> None:
    """Raises PlanError unless inputs are where moves and attends read them, and come there once."""
    for tensor, *_ in groups(plan):  # what is true of the first is true of all
        if tensor in HELD[plan.pass_]:
            _check_input(plan, tensor)


def _check_input(plan: Plan, tensor: str) -> None:
    here, copies, absent = Marks(plan, tensor, nothing=True), Copies(plan, tensor), None
    here.set(at_owner(plan, tensor), True)
    came = len(plan.side(tensor))
    for number in range(len(plan.steps) + 1):
        for rank, blocks, _ in copies.readable(number):
            here.set(places(plan, tensor, rank, blocks), True)
            came += present(blocks)
        if absent := next(_absent(plan, tensor, number, copies.reads(number), here), None):
            break
    if np.count_nonzero(here.bits) - 1 < came:
        raise next(_twice(plan, tensor))
    if absent:
        raise absent


def _twice(plan: Plan, tensor: str) -> Iterator[PlanError]:
    """Yields an error for each copy of a block that is there, the first one first."""
    here, copies = Marks(plan, tensor), Copies(plan, tensor)
    here.set(at_owner(plan, tensor), True)
    for number in range(-1, len(plan.steps) + 1):
        for rows in copies.comes(number):
            rank, block = flat(rows.rank, rows.blocks)
            entries = cells(plan, tensor).flat(rank, block)
            for at in np.flatnonzero(here.bits[entries] | again(entries)):
                yield PlanError(
                    f"{'start' if number < 0 else f'step {number}'}: rank {rank[at]} is sent"
                    f" {tensor} block {block[at]} a second time"
                )
            here.set(entries, True)


def _absent(
    plan: Plan, tensor: str, number: int, reads: Iterable[Rows], here: Marks
) -> Iterator[PlanError]:
    """Yields an error for each node of a step that reads what is not there yet, if it ever is."""
    for rank, blocks, to in reads:
        entries = places(plan, tensor, rank, blocks)
        if here.bits[entries].all():
            continue
        row, column = np.argwhere(~here.bits[entries])[0]
        comes = int(arrivals(plan, tensor)[entries[row, column]])
        does = f"attends {tensor}" if to is None else f"sends {tensor} to rank {to[row]}"
        when = "never comes there" if comes == NEVER else f"is there from step {comes} only"
        yield PlanError(
            f"step {number}: rank {rank[row]} {does}, but block {blocks[row, column]} {when}"
        )
