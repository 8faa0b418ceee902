"""Checks partial-sum transfers: none is empty or repeated in a step, sums end at their owners."""

from collections.abc import Iterator

import numpy as np

from planner.analysis.marks import at_owner, attended_blocks, cells, places
from planner.columns import again, twice
from planner.errors import PlanError
from planner.ir import ACCUMULATORS, Index, Move, Plan
from planner.partitions import Ints

Transfers = list[tuple[Move, Ints]]  # moves with the contributions in their blocks: int32 [n, w]


def check_partial_sums(plan: Plan) -> None:
    """Raises PlanError for empty and repeated transfers, and for sums that end away from owners.

    An absent accumulator counts as zero, as long as another one of its message is present.
    """
    for tensor in ACCUMULATORS[plan.pass_]:
        held = no_contributions(plan, tensor)
        for number, sent in transfers(plan, tensor, held):
            _refuse_transfers(plan, number, tensor, sent)
        left = [cells(plan, tensor).at(entry) for entry in away(plan, tensor, held).tolist()]
        if left:
            rank, block = min(left)
            raise PlanError(
                f"end: rank {rank} still holds {tensor} block {block}, whose owner is rank"
                f" {plan.side(tensor).owners[block]}; {len(left)} such in all"
            )


def absent_sums(plan: Plan) -> bool:
    """Returns True if any message lists an accumulator that is absent."""
    return any(
        ((parts == 0) & (move.blocks >= 0)).any()
        for tensor in travelling(plan)
        for _, sent in transfers(plan, tensor, no_contributions(plan, tensor))
        for move, parts in sent
    )


def travelling(plan: Plan) -> list[str]:
    """Returns the accumulators that messages carry."""
    carried = {tensor for _, move in plan.moves() for tensor in move.tensors}
    return [tensor for tensor in ACCUMULATORS[plan.pass_] if tensor in carried]


def no_contributions(plan: Plan, tensor: str) -> Ints:
    """Returns 0 for the accumulator of each block on each rank, by `places`."""
    return np.zeros(cells(plan, tensor).size, np.int32)


def away(plan: Plan, tensor: str, held: Ints) -> Index:
    """Returns the entries of `held` with a contribution on a rank that does not own the block."""
    others = held > 0
    others[at_owner(plan, tensor)] = False
    return np.flatnonzero(others)


def transfers(plan: Plan, tensor: str, held: Ints) -> Iterator[tuple[int, Transfers]]:
    """Yields the partial-sum transfers of each step that has any; brings `held` up to date.

    held: contributions in the accumulator of each block on each rank, by `places`.
    """
    nowhere = cells(plan, tensor).nowhere
    for number, step in enumerate(plan.steps):
        moves = [move for move in step.moves if tensor in move.tensors]
        taken = [places(plan, tensor, move.src, move.blocks) for move in moves]
        sent = [(move, held[entries]) for move, entries in zip(moves, taken, strict=True)]
        if sent:
            yield number, sent
        for entries in taken:
            held[entries] = 0
        for move, parts in sent:
            _add(held, places(plan, tensor, move.dst, move.blocks), parts)
        for attend in step.attends:
            entries = places(plan, tensor, attend.rank, attended_blocks(attend, tensor))
            _add(held, entries, np.ones_like(entries, np.int32))
        held[nowhere] = 0


def _add(held: Ints, entries: Index, parts: Ints) -> None:
    """Adds to entries [n, w], some of them repeated; laid flat, which is six times as fast."""
    np.add.at(held, entries.T.reshape(-1), parts.T.reshape(-1))


def _refuse_transfers(plan: Plan, number: int, tensor: str, sent: Transfers) -> None:
    """Raises PlanError for a message without any accumulator, and for one sent twice in a step."""
    for move, parts in sent:
        empty = ~parts.any(axis=1)
        if empty.any():
            row = int(np.argmax(empty))
            blocks = ", ".join(str(b) for b in move.blocks[row].tolist() if b >= 0)
            raise PlanError(
                f"step {number}: rank {move.src[row]} sends {tensor} block {blocks} but holds none:"
                " the transfer is empty"
            )
    keys = [places(plan, tensor, m.src, m.blocks).T[m.blocks.T >= 0] for m, _ in sent]
    if twice(key := np.concatenate(keys)):
        rank, block = cells(plan, tensor).at(int(key[again(key)][0]))
        raise PlanError(
            f"step {number}: rank {rank} sends {tensor} block {block} twice in one step"
        )
