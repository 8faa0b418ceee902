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
        counts = Table(plan, tensor, np.uint8)
        for number, group in transfers(plan, tensor, counts):
            _refuse_transfers(number, tensor, group, counts)
        misplaced = [counts.cells.at(entry) for entry in away_from_owners(counts).tolist()]
        if misplaced:
            rank, block = min(misplaced)
            raise PlanError(
                f"end: rank {rank} still holds {tensor} block {block}, whose owner is rank"
                f" {plan.side(tensor).owners[block]}; {len(misplaced)} such blocks in total"
            )


def travelling_accumulators(plan: Plan) -> list[str]:
    """Returns the accumulators that messages carry."""
    carried_tensors = {tensor for _, move in plan.moves() for tensor in move.tensors}
    return [tensor for tensor in ACCUMULATORS[plan.pass_] if tensor in carried_tensors]


def away_from_owners(counts: Table) -> Index:
    """Returns the entries with a contribution on a rank other than the owner."""
    is_elsewhere = counts.flat > 0
    is_elsewhere[counts.cells.owned] = False
    return np.flatnonzero(is_elsewhere)


def transfers(
    plan: Plan, tensor: str, counts: Table, accumulate: np.ufunc = np.maximum
) -> Iterator[tuple[int, Transfers]]:
    """Yields the partial-sum transfers of each step that has any, and updates `counts`.

    counts: 1 for an accumulator with contributions; with np.add, the number of contributions.
    """

    def add(entries: Index, parts: Counts) -> None:
        """Adds parts at entries [n, w], which may repeat; flat arrays are six times as fast."""
        accumulate.at(counts.flat, entries.T.reshape(-1), parts.T.reshape(-1))

    for number, step in enumerate(plan.steps):
        moves = [move for move in step.moves if tensor in move.tensors]
        sources = [counts.of(move.src, move.blocks) for move in moves]
        pairs = zip(moves, sources, strict=True)
        group = [(move, entries, counts[entries]) for move, entries in pairs]
        if group:
            yield number, group
        for entries in sources:
            counts[entries] = 0
        for move, _, parts in group:
            add(counts.of(move.dst, move.blocks), parts)
        for attend in step.attends:
            entries = counts.of(attend.rank, attended_blocks(attend, tensor))
            add(entries, np.ones_like(entries, counts.flat.dtype))
        counts.flat[counts.cells.nowhere] = 0


def _refuse_transfers(number: int, tensor: str, group: Transfers, counts: Table) -> None:
    """Raises PlanError for a message without accumulators, and for two of one accumulator."""
    for move, _, parts in group:
        empty = ~parts.any(axis=1)
        if empty.any():
            row = int(np.argmax(empty))
            blocks = ", ".join(str(b) for b in move.blocks[row].tolist() if b >= 0)
            raise PlanError(
                f"step {number}: rank {move.src[row]} sends {tensor} block {blocks} but holds none:"
                " the transfer is empty"
            )
    keys = [entries.T[move.blocks.T >= 0] for move, entries, _ in group]
    if has_duplicates(key := np.concatenate(keys)):
        rank, block = counts.cells.at(int(key[is_repeat(key)][0]))
        raise PlanError(
            f"step {number}: rank {rank} sends {tensor} block {block} twice in one step"
        )
