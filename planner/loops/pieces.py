"""groups(plan)   groups the pieces of a rank that always travel together.

    A <- send KV A[0] ...                    A <- send KV A ...         own[0] as it goes around
    attend own x A + B, other          -->   attend own x A, other      for each value
    B <- send DKV sum for A@t-1[0] ...       B <- send DKV sum for A@t-1 ...

Pieces of a group travel as one value. So every value has equally many pieces on all ranks.
"""

from collections.abc import Iterator

import numpy as np

from ringloom.planner.ir import Plan
from ringloom.planner.loops.form import Ints
from ringloom.planner.loops.values import pack

Groups = dict[str, Ints]  # by side, the group of each block; none where all travel together


def groups(plan: Plan) -> Groups:
    """Returns the groups of pieces, for sides with more than one group."""
    made = {side: _groups(plan, side) for side in ("q", "kv")}
    return {side: of for side, of in made.items() if of.any()}


def _groups(plan: Plan, side: str) -> Ints:
    """Returns the group of each block: pieces of which every message has all or none."""
    pieces = _pieces(plan, side)
    many = int(pieces.max(initial=0)) + 1
    together = [frozenset(range(many))]
    for taken in {*_pieces_per_message(plan, side, pieces, many)} if many > 1 else ():
        parts = [part for group in together for part in (group & taken, group - taken)]
        together = [part for part in parts if part]
    number = np.zeros(many, np.intp)
    for n, group in enumerate(sorted(together, key=min)):
        number[[*group]] = n
    return np.asarray(number[pieces])


def _pieces(plan: Plan, side: str) -> Ints:
    """Returns the index of each block's piece on its owner."""
    blocks = plan.partition.side(side)
    table = pack(plan.ranks, blocks, blocks.owners, np.arange(len(blocks))[:, None])
    rank, piece, head = np.nonzero(table >= 0)
    pieces = np.zeros(len(blocks), np.intp)
    pieces[table[rank, piece, head]] = piece
    return pieces


def _pieces_per_message(plan: Plan, side: str, pieces: Ints, many: int) -> Iterator[frozenset[int]]:
    """Yields the pieces in each message, except for messages with all pieces."""
    for move in (move for _, move in plan.moves() if move.side == side):
        present = np.zeros((len(move), many + 1), np.bool_)
        np.put_along_axis(present, np.where(move.blocks < 0, many, pieces[move.blocks]), True, 1)
        if not present[:, :many].all():
            for row in np.unique(present[:, :many], axis=0):
                yield frozenset(np.flatnonzero(row).tolist())
