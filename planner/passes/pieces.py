"""per_piece(plan)    messages as small as they stay regular, for masks that need few of them
per_block(plan)    one message per block;  joined(plan)   messages between two ranks are one again
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.ir import Index, Move, Plan, Step
from planner.masks import Causal, Full, region_of
from planner.partitions import Side
from planner.passes.exchanges import exchanges

Cut = Callable[[Move], list[Move]]


def per_piece(plan: Plan) -> Plan:
    """State one message per piece, unless the mask is full or causal.

    Move([early, late], r, r + 1)  -->  Move([early], r, r + 1), Move([late], r, r + 1)

    Blocks whose positions run on in every row of a move, and head slices of the same positions,
    are one piece. Complete exchanges stay as they are: each is one collective.
    """
    if _plain(plan):
        return plan
    ends = {side: _Ends.of(plan.partition.side(side)) for side in ("q", "kv")}

    def cut(move: Move) -> list[Move]:
        return _by_columns(move, _pieces(move, ends[move.side]))

    return replace(plan, steps=tuple(Step(s.attends, _cut(plan, s, cut)) for s in plan.steps))


def _plain(plan: Plan) -> bool:
    """True for the masks under which every piece goes the whole way, or as far as its neighbour."""
    region = region_of(plan.workload.mask).pieces
    return any(np.array_equal(region, region_of(mask()).pieces) for mask in (Full, Causal))


def _cut(plan: Plan, step: Step, cut: Cut) -> tuple[Move, ...]:
    """The moves of a step, cut where they are no part of an exchange."""
    if all(move.blocks.shape[1] == 1 for move in step.moves):
        return step.moves
    cut_moves = list[Move]()
    for move, label in zip(step.moves, exchanges(plan.ranks, step.moves), strict=True):
        whole = label >= 0
        if move.blocks.shape[1] == 1 or whole.all():
            cut_moves.append(move)
        elif whole.any():
            cut_moves += [_rows(move, whole), *cut(_rows(move, ~whole))]
        else:
            cut_moves += cut(move)
    return tuple(cut_moves)


def _rows(move: Move, rows: NDArray[np.bool_]) -> Move:
    return Move(move.tensors, move.blocks[rows], move.src[rows], move.dst[rows])


@dataclass(frozen=True)
class _Ends:
    """Per block: where its positions begin and end (-1 for several ranges), and their number."""

    begin: Index
    end: Index
    chunk: Index
    empty: NDArray[np.bool_]

    @staticmethod
    def of(side: Side) -> "_Ends":
        """The ends of every block of a side."""
        begin = np.array([min((r.start for r in c), default=-1) for c in side.chunks], np.intp)
        plain = [c[0].stop if len(c) == 1 and c[0].step == 1 else -1 for c in side.chunks]
        chunk = side.chunk.astype(np.intp)
        return _Ends(begin[chunk], np.array(plain, np.intp)[chunk], chunk, side.sizes == 0)


def _pieces(move: Move, of: _Ends) -> Index:
    """A number for the piece that each column of a move belongs to."""
    blocks = move.blocks
    fullest = blocks[np.argmax((blocks >= 0).sum(axis=1))]
    order = np.lexsort((of.chunk[fullest], of.begin[fullest]))
    left, right = blocks[:, order[:-1]], blocks[:, order[1:]]
    absent = (left < 0) | (right < 0) | of.empty[left] | of.empty[right]
    runs_on = (of.chunk[left] == of.chunk[right]) | (of.end[left] == of.begin[right])
    together = (absent | runs_on).all(axis=0) & ~absent.all(axis=0)
    piece = np.empty(blocks.shape[1], np.intp)
    piece[order] = np.concatenate([[0], np.cumsum(~together)])
    return piece


def _by_columns(move: Move, piece: Index) -> list[Move]:
    columns = [piece == n for n in dict.fromkeys(piece.tolist())]
    if len(columns) == 1:
        return [move]
    return [Move(move.tensors, move.blocks[:, c], move.src, move.dst) for c in columns]


def per_block(plan: Plan) -> Plan:
    """Move([a, b], r, s)  -->  Move([a], r, s), Move([b], r, s)"""

    def cut(move: Move) -> list[Move]:
        return _by_columns(move, np.arange(move.blocks.shape[1]))

    steps = (Step(s.attends, tuple(n for m in s.moves for n in cut(m))) for s in plan.steps)
    return replace(plan, steps=tuple(steps))


def joined(plan: Plan) -> Plan:
    """Move([a], r, s), Move([b], r, s)  -->  Move([a, b], r, s)"""
    steps = []
    for step in plan.steps:
        kinds = dict.fromkeys(move.tensors for move in step.moves)
        moves = (_join([m for m in step.moves if m.tensors == kind]) for kind in kinds)
        steps.append(Step(step.attends, tuple(moves)))
    return replace(plan, steps=tuple(steps))


def _join(moves: Sequence[Move]) -> Move:
    """One message for each pair of ranks, its blocks in the order of the nodes."""
    flat = [move.flat() for move in moves]
    block, src, dst = (np.concatenate(column) for column in zip(*flat, strict=True))
    ranks = int(max(src.max(), dst.max())) + 1
    pair, row = np.unique(src * ranks + dst, return_inverse=True)
    order = np.argsort(row, kind="stable")
    counts = np.bincount(row)
    place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    table = np.full((len(pair), int(counts.max())), -1, np.int32)
    table[row[order], place] = block[order]
    return Move(moves[0].tensors, table, *np.divmod(pair, ranks))
