"""Checks inputs: each copy arrives once, and no rank reads a copy before it arrives."""

from collections.abc import Iterator

import numpy as np

from ringloom.planner.analysis.copies import Copies
from ringloom.planner.analysis.tables import Table, group_tensors
from ringloom.planner.columns import count_present, flatten_blocks, is_repeat
from ringloom.planner.errors import PlanError
from ringloom.planner.ir import INITIAL, Plan


def check_inputs(plan: Plan) -> None:
    """Raises PlanError unless inputs arrive once, before ranks read them."""
    for tensor, *_ in group_tensors(plan):  # tensors of a group always travel together
        if tensor in INITIAL[plan.pass_]:
            _check_input(plan, tensor)


def _check_input(plan: Plan, tensor: str) -> None:
    copies, arrivals, never = Copies(plan, tensor), len(plan.side(tensor)), len(plan.steps) + 1
    ready = Table(plan, tensor, np.min_scalar_type(never))  # the first step that can read
    ready.flat[:] = never
    ready[ready.cells.owned] = 0
    for number in range(never):
        for rank, blocks, _ in copies.readable(number):
            ready[rank, blocks] = number
            arrivals += count_present(blocks)
    if np.count_nonzero(ready.flat < never) - 1 < arrivals:
        raise next(_repeated_arrivals(plan, tensor))
    for error in _early_reads(plan, tensor, copies, ready):
        raise error


def _repeated_arrivals(plan: Plan, tensor: str) -> Iterator[PlanError]:
    """Yields an error for each copy that arrives a second time, in order."""
    is_present, copies = Table(plan, tensor), Copies(plan, tensor)
    is_present[is_present.cells.owned] = True
    for number in range(-1, len(plan.steps) + 1):
        for rows in copies.comes(number):
            rank, block = flatten_blocks(rows.rank, rows.blocks)
            entries = is_present.cells.flat(rank, block)
            for n in np.flatnonzero(is_present[entries] | is_repeat(entries)):
                yield PlanError(
                    f"{'start' if number < 0 else f'step {number}'}: rank {rank[n]} is sent"
                    f" {tensor} block {block[n]} a second time"
                )
            is_present[entries] = True


def _early_reads(plan: Plan, tensor: str, copies: Copies, ready: Table) -> Iterator[PlanError]:
    """Yields an error for each node that reads a block too early, or that never arrives."""
    never = len(plan.steps) + 1
    for number in range(never):
        for rank, blocks, to in copies.reads(number):
            is_early = (readable := ready[rank, blocks]) > number
            if is_early.any():
                at = row, _ = tuple(np.argwhere(is_early)[0])
                action = f"attends {tensor}" if to is None else f"sends {tensor} to rank {to[row]}"
                reason = f"is readable there only from step {readable[at]}"
                reason = reason if readable[at] < never else "never arrives there"
                yield PlanError(
                    f"step {number}: rank {rank[row]} {action}, but block {blocks[at]} {reason}"
                )
