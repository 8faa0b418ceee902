"""Checks partial-sum transfers: none is empty or repeated, and sums end at their owners."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.analysis.tables import Table, attended_blocks
from ringloom.planner.columns import has_duplicates, is_repeat
from ringloom.planner.errors import PlanError
from ringloom.planner.ir import ACCUMULATORS, Index, Move, Plan

Counts = NDArray[np.integer]
# Moves, the entries of their blocks at the source, and the contributions there: [n, w]
Transfers = list[tuple[Move, Index, Counts]]


def check_partial_sums(plan: Plan) -> None:
    """Raises PlanError for empty and repeated transfers, and for sums that do not end at owners.

    An absent accumulator counts as zero if another accumulator of its message is present.
    """
    for tensor in ACCUMULATORS[plan.pass_]:
        held = Table(plan, tensor, np.uint8)
        for number, sent in transfers(plan, tensor, held):
            _refuse_transfers(number, tensor, sent, held)
        left = [held.cells.at(entry) for entry in away_from_owners(held).tolist()]
        if left:
            rank, block = min(left)
            raise PlanError(
                f"end: rank {rank} still holds {tensor} block {block}, whose owner is rank"
                f" {plan.side(tensor).owners[block]}; {len(left)} such blocks in total"
            )


def travelling_accumulators(plan: Plan) -> list[str]:
    """Returns the accumulators that messages carry."""
    carried = {tensor for _, move in plan.moves() for tensor in move.tensors}
    return [tensor for tensor in ACCUMULATORS[plan.pass_] if tensor in carried]


def away_from_owners(held: Table) -> Index:
    """Returns the entries of `held` with a contribution on a rank other than the owner."""
    others = held.flat > 0
    others[held.cells.owned] = False
    return np.flatnonzero(others)


def transfers(
    plan: Plan, tensor: str, held: Table, join: np.ufunc = np.maximum
) -> Iterator[tuple[int, Transfers]]:
    """Yields the partial-sum transfers of each step that has any, and updates `held`.

    held: 1 for accumulators with contributions, or the number of contributions if `join` is np.add.
    """

    def add(entries: Index, parts: Counts) -> None:
        """Adds parts at entries [n, w], which may repeat; flat arrays are six times as fast."""
        join.at(held.flat, entries.T.reshape(-1), parts.T.reshape(-1))

    for number, step in enumerate(plan.steps):
        moves = [move for move in step.moves if tensor in move.tensors]
        taken = [held.of(move.src, move.blocks) for move in moves]
        sent = [(move, entries, held[entries]) for move, entries in zip(moves, taken, strict=True)]
        if sent:
            yield number, sent
        for entries in taken:
            held[entries] = 0
        for move, _, parts in sent:
            add(held.of(move.dst, move.blocks), parts)
        for attend in step.attends:
            entries = held.of(attend.rank, attended_blocks(attend, tensor))
            add(entries, np.ones_like(entries, held.flat.dtype))
        held.flat[held.cells.nowhere] = 0


def _refuse_transfers(number: int, tensor: str, sent: Transfers, held: Table) -> None:
    """Raises PlanError for a message without accumulators, and for two of one accumulator."""
    for move, _, parts in sent:
        empty = ~parts.any(axis=1)
        if empty.any():
            row = int(np.argmax(empty))
            blocks = ", ".join(str(b) for b in move.blocks[row].tolist() if b >= 0)
            raise PlanError(
                f"step {number}: rank {move.src[row]} sends {tensor} block {blocks} but holds none:"
                " the transfer is empty"
            )
    keys = [entries.T[move.blocks.T >= 0] for move, entries, _ in sent]
    if has_duplicates(key := np.concatenate(keys)):
        rank, block = held.cells.at(int(key[is_repeat(key)][0]))
        raise PlanError(
            f"step {number}: rank {rank} sends {tensor} block {block} twice in one step"
        )
