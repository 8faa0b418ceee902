"""Checks inputs: they come to a rank once, and moves and attends read them no earlier."""

from collections.abc import Iterator

import numpy as np

from planner.analysis.copies import Copies
from planner.analysis.tables import Table, groups
from planner.columns import again, flat, present
from planner.errors import PlanError
from planner.ir import HELD, Plan


def check_inputs(plan: Plan) -> None:
    """Raises PlanError unless inputs are where moves and attends read them, and come there once."""
    for tensor, *_ in groups(plan):  # what is true of the first is true of all
        if tensor in HELD[plan.pass_]:
            _check_input(plan, tensor)


def _check_input(plan: Plan, tensor: str) -> None:
    here, copies, absent = Table(plan, tensor, nothing=True), Copies(plan, tensor), None
    here[here.cells.owned] = True
    came = len(plan.side(tensor))
    for number in range(len(plan.steps) + 1):
        for rank, blocks, _ in copies.readable(number):
            here[rank, blocks] = True
            came += present(blocks)
        if absent := next(_absent(plan, tensor, number, copies, here), None):
            break
    if np.count_nonzero(here.flat) - 1 < came:
        raise next(_twice(plan, tensor))
    if absent:
        raise absent


def _twice(plan: Plan, tensor: str) -> Iterator[PlanError]:
    """Yields an error for each copy of a block that is there, the first one first."""
    here, copies = Table(plan, tensor), Copies(plan, tensor)
    here[here.cells.owned] = True
    for number in range(-1, len(plan.steps) + 1):
        for rows in copies.comes(number):
            rank, block = flat(rows.rank, rows.blocks)
            entries = here.cells.flat(rank, block)
            for at in np.flatnonzero(here[entries] | again(entries)):
                yield PlanError(
                    f"{'start' if number < 0 else f'step {number}'}: rank {rank[at]} is sent"
                    f" {tensor} block {block[at]} a second time"
                )
            here[entries] = True


def _absent(
    plan: Plan, tensor: str, number: int, copies: Copies, here: Table
) -> Iterator[PlanError]:
    """Yields an error for each node of a step that reads what is not there yet, if it ever is."""
    for rank, blocks, to in copies.reads(number):
        readable = here[rank, blocks]
        if readable.all():
            continue
        row, column = np.argwhere(~readable)[0]
        reader, block = rank[row], blocks[row, column]
        comes = (
            f"is there from step {later} only"
            for later in range(number + 1, len(plan.steps) + 1)
            for rows in copies.readable(later)
            if (rows.blocks[rows.rank == reader] == block).any()
        )
        does = f"attends {tensor}" if to is None else f"sends {tensor} to rank {to[row]}"
        when = next(comes, "never comes there")
        yield PlanError(f"step {number}: rank {reader} {does}, but block {block} {when}")
