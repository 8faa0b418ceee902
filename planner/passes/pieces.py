"""per_piece(plan)    the smallest messages that stay regular, for masks that need few of them
per_block(plan)    one message per block;  joined(plan)   one message per pair of ranks
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ringloom.planner.analysis.tables import Bits, Table, attended_blocks
from ringloom.planner.columns import by_group
from ringloom.planner.ir import Index, InitialCopy, Move, Plan, Step
from ringloom.planner.masks.mask import SideName
from ringloom.planner.partitions import Side
from ringloom.planner.passes.trim import drop_empty


def per_piece(plan: Plan) -> Plan:
    """Split messages into one per piece, unless the mask is full or causal.

    Move([early, late], r, r + 1)  -->  Move([early], r, r + 1), Move([late], r, r + 1)

    Blocks with contiguous positions in every row of a move form one piece, and so do head slices of
    the same positions. Messages stay whole if their blocks are attended together with blocks of
    other messages: a gather, an all-to-all and their sums are one collective each.
    """
    if not plan.workload.mask.fixed_length:
        return plan
    pieces = {side: _pieces(plan.partition.side(side)) for side in ("q", "kv")}
    wider = {side: _attended_with_others(plan, side) for side in ("q", "kv")}

    def cut(move: Move) -> list[Move]:
        if move.blocks.shape[1] == 1:
            return [move]
        whole = wider[move.side](move)
        kept, rest = move.only(whole), move.only(~whole)
        return [kept, *(_by_columns(rest, pieces[move.side](rest)) if len(rest) else ())]

    return _cut(plan, cut)


def _cut(plan: Plan, cut: Callable[[Move], list[Move]]) -> Plan:
    """Returns the plan with its messages cut, without those that then carry no sum.

    Initial copies are cut like the messages that brought them.
    """
    steps = (Step(s.attends, tuple(n for m in s.moves for n in cut(m))) for s in plan.steps)
    start = (_as_initial_copy(m) for held in plan.start for m in cut(bringing_moves(plan, held)))
    return drop_empty(replace(plan, start=tuple(filter(len, start)), steps=tuple(steps)))


def bringing_moves(plan: Plan, held: InitialCopy) -> Move:
    """Returns messages that bring initial copies from their owner; -1 for several owners."""
    owners = plan.partition.side(held.side).owners
    owner = owners[held.blocks.max(axis=1)]
    one = ((owners[held.blocks] == owner[:, None]) | (held.blocks < 0)).all(axis=1)
    return Move(held.tensors, held.blocks, np.where(one, owner, -1), held.rank)


def _as_initial_copy(move: Move) -> InitialCopy:
    return InitialCopy(move.tensors, move.blocks, move.dst)


def _attended_with_others(plan: Plan, side: SideName) -> Callable[[Move], Bits]:
    """Returns a function that marks messages attended together with other blocks: bool [rows].

    Inputs are attended at the destination, sums were made at the source. The first rectangle in
    which that rank attends a block decides.
    """
    tensor, attends = "Q" if side == "q" else "KV", [attend for _, attend in plan.attends()]
    first = Table(plan, tensor, np.uint32)  # rectangles are numbered from the last one, which is 1
    width, at = np.zeros(1 + sum(map(len, attends)), np.intp), 0
    for attend in reversed(attends):
        blocks = attended_blocks(attend, tensor)
        numbers = np.arange(at := at + len(attend), at - len(attend), -1)
        width[numbers] = (blocks >= 0).sum(axis=1)
        first[attend.rank, blocks] = numbers[:, None]

    def wider(move: Move) -> Bits:
        rank = move.src if move.accumulates else move.dst
        rectangle = first[rank, move.blocks]
        one = rectangle.max(axis=1)
        attended = ((rectangle == one[:, None]) & (move.blocks >= 0)).sum(axis=1)
        return np.asarray(width[one] > attended)

    return wider


def _pieces(side: Side) -> Callable[[Move], Index]:
    """Returns a function that numbers the columns of a move by their piece."""
    chunk, none = side.chunk.astype(np.intp), side.sizes == 0
    begin = np.array([min((r.start for r in c), default=-1) for c in side.chunks], np.intp)[chunk]
    plain = [c[0].stop if len(c) == 1 and c[0].step == 1 else -1 for c in side.chunks]
    end = np.array(plain, np.intp)[chunk]  # -1 for blocks of several ranges

    def pieces(move: Move) -> Index:
        blocks = move.blocks
        fullest = blocks[np.argmax((blocks >= 0).sum(axis=1))]
        order = np.lexsort((chunk[fullest], begin[fullest]))
        left, right = blocks[:, order[:-1]], blocks[:, order[1:]]
        absent = (left < 0) | (right < 0) | none[left] | none[right]
        contiguous = (chunk[left] == chunk[right]) | (end[left] == begin[right])
        together = (absent | contiguous).all(axis=0) & ~absent.all(axis=0)
        piece = np.empty(blocks.shape[1], np.intp)
        piece[order] = np.concatenate([[0], np.cumsum(~together)])
        return piece

    return pieces


def _by_columns(move: Move, piece: Index) -> list[Move]:
    columns = [piece == n for n in dict.fromkeys(piece.tolist())]
    if len(columns) == 1:
        return [move]
    return [Move(move.tensors, move.blocks[:, c], move.src, move.dst) for c in columns]


def per_block(plan: Plan) -> Plan:
    """Move([a, b], r, s)  -->  Move([a], r, s), Move([b], r, s)"""

    def cut(move: Move) -> list[Move]:
        return _by_columns(move, np.arange(move.blocks.shape[1]))

    return _cut(plan, cut)


def join_messages(plan: Plan) -> Plan:
    """Move([a], r, s), Move([b], r, s)  -->  Move([a, b], r, s)"""
    steps = (Step(step.attends, _join(step.moves)) for step in plan.steps)
    held = _join(tuple(bringing_moves(plan, one) for one in plan.start))
    return replace(plan, start=tuple(map(_as_initial_copy, held)), steps=tuple(steps))


def _join(moves: tuple[Move, ...]) -> tuple[Move, ...]:
    """Joins messages per pair of ranks and tensors, with blocks in the order of the nodes."""
    return tuple(map(_by_pair, Step((), moves).joined().moves))


def _by_pair(move: Move) -> Move:
    block, src, dst = move.flat()
    ranks = int(max(src.max(), dst.max())) + 1
    pair, row = np.unique(src * ranks + dst, return_inverse=True)
    blocks = np.append(block, -1)[by_group(row, len(pair))]
    return Move(move.tensors, blocks, *np.divmod(pair, ranks))
