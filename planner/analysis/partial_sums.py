"""Checks partial-sum transfers: none is empty, none repeated in a step, all sums end at home."""

from collections.abc import Iterator

import numpy as np

from planner.analysis.marks import Bits, attended_blocks, places
from planner.columns import again, rowwise, twice
from planner.errors import PlanError
from planner.ir import ACCUMULATORS, Move, Plan


def check_partial_sums(plan: Plan) -> None:
    """Raises PlanError for an empty or repeated transfer, and for a sum that ends away from home.

    An absent accumulator counts as zero, as long as another one of its message is present.
    """
    for tensor in ACCUMULATORS[plan.pass_]:
        side = plan.side(tensor)
        filled = np.zeros((plan.ranks, len(side) + 1), bool)  # one more: what block -1 finds
        for number, handed, present in _transfers(plan, tensor, filled):
            _refuse_transfers(plan, number, tensor, handed, present)
        filled[side.homes, np.arange(len(side))] = False
        if filled.any():
            rank, block = np.argwhere(filled)[0]
            raise PlanError(
                f"end: rank {rank} still holds {tensor} block {block}, whose home is rank"
                f" {side.homes[block]}; {int(filled.sum())} such in all"
            )


def absent_sums(plan: Plan) -> bool:
    """Returns True if any message lists an accumulator that is absent."""
    for tensor in ACCUMULATORS[plan.pass_]:
        filled = np.zeros((plan.ranks, len(plan.side(tensor)) + 1), bool)
        for _, handed, present in _transfers(plan, tensor, filled):
            pairs = zip(handed, present, strict=True)
            if any((~held & (move.blocks >= 0)).any() for move, held in pairs):
                return True
    return False


def _transfers(
    plan: Plan, tensor: str, filled: Bits
) -> Iterator[tuple[int, list[Move], list[Bits]]]:
    """Yields (step, moves of an accumulator, which blocks are present); updates `filled`."""
    bits = filled.reshape(-1)
    for number, step in enumerate(plan.steps):
        handed = [m for m in step.moves if tensor in m.tensors]
        taken = [places(plan, tensor, m.src, m.blocks) for m in handed]
        present = [bits[entries] for entries in taken]
        if handed:
            yield number, handed, present
        for entries in taken:
            bits[entries] = False
        for move, held in zip(handed, present, strict=True):
            to = places(plan, tensor, move.dst, move.blocks)
            bits[to if held.all() else to[held]] = True
        for attend in step.attends:
            bits[places(plan, tensor, attend.rank, attended_blocks(attend, tensor))] = True
        filled[:, -1] = False


def _refuse_transfers(
    plan: Plan, number: int, tensor: str, handed: list[Move], present: list[Bits]
) -> None:
    """Raises PlanError for a message without any accumulator, and for one sent twice in a step."""
    for move, held in zip(handed, present, strict=True):
        empty = ~rowwise(np.logical_or, held)
        if empty.any():
            row = int(np.argmax(empty))
            blocks = ", ".join(str(b) for b in move.blocks[row].tolist() if b >= 0)
            raise PlanError(
                f"step {number}: rank {move.src[row]} sends {tensor} block {blocks} but holds none:"
                " the transfer is empty"
            )
    keys = [places(plan, tensor, m.src, m.blocks)[m.blocks >= 0] for m in handed]
    if twice(key := np.concatenate(keys)):
        rank, block = divmod(int(key[again(key)][0]), len(plan.side(tensor)) + 1)
        raise PlanError(
            f"step {number}: rank {rank} sends {tensor} block {block} twice in one step"
        )
