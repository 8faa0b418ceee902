"""Checks inputs: each copy arrives once, and is not read before it arrives."""

from collections.abc import Iterator

import numpy as np

from ringloom.planner.analysis.copies import Copies
from ringloom.planner.analysis.tables import Table, groups
from ringloom.planner.columns import count_present, flat, is_repeat
from ringloom.planner.errors import PlanError
from ringloom.planner.ir import HELD, Plan


def check_inputs(plan: Plan) -> None:
    """Raises PlanError unless inputs are present where they are read, and arrive there once."""
    for tensor, *_ in groups(plan):  # tensors of a group always travel together
        if tensor in HELD[plan.pass_]:
            _check_input(plan, tensor)


def _check_input(plan: Plan, tensor: str) -> None:
    copies, came, never = Copies(plan, tensor), len(plan.side(tensor)), len(plan.steps) + 1
    ready = Table(plan, tensor, np.min_scalar_type(never))  # first step in which it can be read
    ready.flat[:] = never
    ready[ready.cells.owned] = 0
    for number in range(never):
        for rank, blocks, _ in copies.readable(number):
            ready[rank, blocks] = number
            came += count_present(blocks)
    if np.count_nonzero(ready.flat < never) - 1 < came:
        raise next(_twice(plan, tensor))
    for error in _absent(plan, tensor, copies, ready):
        raise error


def _twice(plan: Plan, tensor: str) -> Iterator[PlanError]:
    """Yields an error for each copy that arrives a second time, in order."""
    here, copies = Table(plan, tensor), Copies(plan, tensor)
    here[here.cells.owned] = True
    for number in range(-1, len(plan.steps) + 1):
        for rows in copies.comes(number):
            rank, block = flat(rows.rank, rows.blocks)
            entries = here.cells.flat(rank, block)
            for at in np.flatnonzero(here[entries] | is_repeat(entries)):
                yield PlanError(
                    f"{'start' if number < 0 else f'step {number}'}: rank {rank[at]} is sent"
                    f" {tensor} block {block[at]} a second time"
                )
            here[entries] = True


def _absent(plan: Plan, tensor: str, copies: Copies, ready: Table) -> Iterator[PlanError]:
    """Yields an error for each node that reads a block before it arrives, if it ever does."""
    never = len(plan.steps) + 1
    for number in range(never):
        for rank, blocks, to in copies.reads(number):
            early = (since := ready[rank, blocks]) > number
            if early.any():
                at = tuple(np.argwhere(early)[0])
                does = f"attends {tensor}" if to is None else f"sends {tensor} to rank {to[at[0]]}"
                when = f"is readable there only from step {since[at]}"
                when = when if since[at] < never else "never arrives there"
                yield PlanError(
                    f"step {number}: rank {rank[at[0]]} {does}, but block {blocks[at]} {when}"
                )
