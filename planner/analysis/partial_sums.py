"""Checks partial-sum transfers: none is empty, none repeated in a step, all sums end at home."""

from collections.abc import Iterator

import numpy as np

from planner.analysis.marks import Bits, Marks, at_home, attended_blocks, cells, places
from planner.columns import again, twice
from planner.errors import PlanError
from planner.ir import ACCUMULATORS, Move, Plan


def check_partial_sums(plan: Plan) -> None:
    """Raises PlanError for an empty or repeated transfer, and for a sum that ends away from home.

    An absent accumulator counts as zero, as long as another one of its message is present.
    """
    for tensor in ACCUMULATORS[plan.pass_]:
        filled = Marks(plan, tensor)
        for number, handed, present in _transfers(plan, tensor, filled):
            _refuse_transfers(plan, number, tensor, handed, present)
        filled.set(at_home(plan, tensor), False)
        if filled.bits.any():
            away = [filled.cells.at(entry) for entry in np.flatnonzero(filled.bits).tolist()]
            rank, block = min(away)
            raise PlanError(
                f"end: rank {rank} still holds {tensor} block {block}, whose home is rank"
                f" {plan.side(tensor).homes[block]}; {len(away)} such in all"
            )


def absent_sums(plan: Plan) -> bool:
    """Returns True if any message lists an accumulator that is absent."""
    for tensor in ACCUMULATORS[plan.pass_]:
        filled = Marks(plan, tensor)
        for _, handed, present in _transfers(plan, tensor, filled):
            pairs = zip(handed, present, strict=True)
            if any((~held & (move.blocks >= 0)).any() for move, held in pairs):
                return True
    return False


def _transfers(
    plan: Plan, tensor: str, filled: Marks
) -> Iterator[tuple[int, list[Move], list[Bits]]]:
    """Yields (step, moves of an accumulator, which blocks are present); updates `filled`."""
    for number, step in enumerate(plan.steps):
        handed = [m for m in step.moves if tensor in m.tensors]
        taken = [places(plan, tensor, m.src, m.blocks) for m in handed]
        present = [filled.bits[entries] for entries in taken]
        if handed:
            yield number, handed, present
        for entries in taken:
            filled.set(entries, False)
        for move, held in zip(handed, present, strict=True):
            to = places(plan, tensor, move.dst, move.blocks)
            filled.set(to if held.all() else to[held], True)
        for attend in step.attends:
            filled.set(places(plan, tensor, attend.rank, attended_blocks(attend, tensor)), True)


def _refuse_transfers(
    plan: Plan, number: int, tensor: str, handed: list[Move], present: list[Bits]
) -> None:
    """Raises PlanError for a message without any accumulator, and for one sent twice in a step."""
    for move, held in zip(handed, present, strict=True):
        empty = ~held.any(axis=1)
        if empty.any():
            row = int(np.argmax(empty))
            blocks = ", ".join(str(b) for b in move.blocks[row].tolist() if b >= 0)
            raise PlanError(
                f"step {number}: rank {move.src[row]} sends {tensor} block {blocks} but holds none:"
                " the transfer is empty"
            )
    keys = [places(plan, tensor, m.src, m.blocks)[m.blocks >= 0] for m in handed]
    if twice(key := np.concatenate(keys)):
        rank, block = cells(plan, tensor).at(int(key[again(key)][0]))
        raise PlanError(
            f"step {number}: rank {rank} sends {tensor} block {block} twice in one step"
        )
