"""group_pieces(plan)   groups the pieces of a rank that always travel together.

    A <- send KV A[0] ...                    A <- send KV A ...
    attend own x A + B, other          -->   attend own x A, other
    B <- send DKV sum for A@t-1[0] ...       B <- send DKV sum for A@t-1 ...

The pieces of a group travel as one value. So a value has the same number of pieces on all ranks.
"""

from collections.abc import Iterator

import numpy as np

from ringloom.planner.ir import Plan
from ringloom.planner.loops.form import Ints
from ringloom.planner.loops.values import pack

Groups = dict[str, Ints]  # by side, the group of each block; only sides with several groups


def group_pieces(plan: Plan) -> Groups:
    """Returns the groups of pieces, for sides with more than one group."""
    by_side = {side: _group_side(plan, side) for side in ("q", "kv")}
    return {side: group for side, group in by_side.items() if group.any()}


def _group_side(plan: Plan, side: str) -> Ints:
    """Returns the group of each block; every message has all pieces of a group, or none."""
    pieces = _piece_numbers(plan, side)
    count = int(pieces.max(initial=0)) + 1
    sets = [frozenset(range(count))]
    for subset in {*_pieces_per_message(plan, side, pieces, count)} if count > 1 else ():
        parts = [part for group in sets for part in (group & subset, group - subset)]
        sets = [part for part in parts if part]
    number = np.zeros(count, np.intp)
    for n, group in enumerate(sorted(sets, key=min)):
        number[[*group]] = n
    return np.asarray(number[pieces])


def _piece_numbers(plan: Plan, side: str) -> Ints:
    """Returns the index of each block's piece on its owner."""
    blocks = plan.partition.side(side)
    table = pack(plan.ranks, blocks, blocks.owners, np.arange(len(blocks))[:, None])
    rank, piece, head = np.nonzero(table >= 0)
    pieces = np.zeros(len(blocks), np.intp)
    pieces[table[rank, piece, head]] = piece
    return pieces


def _pieces_per_message(
    plan: Plan, side: str, pieces: Ints, count: int
) -> Iterator[frozenset[int]]:
    """Yields the pieces of messages; skips moves in which each message has all pieces."""
    for move in (move for _, move in plan.moves() if move.side == side):
        has_piece = np.zeros((len(move), count + 1), np.bool_)
        np.put_along_axis(has_piece, np.where(move.blocks < 0, count, pieces[move.blocks]), True, 1)
        if not has_piece[:, :count].all():
            for row in np.unique(has_piece[:, :count], axis=0):
                yield frozenset(np.flatnonzero(row).tolist())
