"""per_piece(plan)       splits messages into pieces, so that later passes can drop some
per_block(plan)       splits messages into one message per block
join_messages(plan)   joins messages into one message per pair of ranks
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ringloom.planner.analysis.tables import Bits, Table, attended_blocks
from ringloom.planner.columns import group_entries
from ringloom.planner.ir import Index, InitialCopy, Move, Plan, Step
from ringloom.planner.masks.mask import SideName
from ringloom.planner.partitions import Side
from ringloom.planner.passes.trim import drop_empty


def per_piece(plan: Plan) -> Plan:
    """Splits messages into one per piece, unless the mask is full or causal.

    Move([early, late], r, r + 1)  -->  Move([early], r, r + 1), Move([late], r, r + 1)

    A piece consists of blocks that have contiguous positions in every row of a move, or the same
    positions in different head slices. Does not split a message if a rank attends its blocks
    together with blocks of other messages: gathers and all-to-alls are collectives.
    """
    if not plan.workload.mask.fixed_length:
        return plan
    pieces = {side: _pieces(plan.partition.side(side)) for side in ("q", "kv")}
    is_shared = {side: _attended_with_others(plan, side) for side in ("q", "kv")}

    def split_move(move: Move) -> list[Move]:
        if move.blocks.shape[1] == 1:
            return [move]
        keep_whole = is_shared[move.side](move)
        unchanged, divisible = move.select(keep_whole), move.select(~keep_whole)
        return [
            unchanged,
            *(_by_columns(divisible, pieces[move.side](divisible)) if len(divisible) else ()),
        ]

    return _cut(plan, split_move)


def _cut(plan: Plan, split_move: Callable[[Move], list[Move]]) -> Plan:
    """Splits the messages of the plan, and drops transfers that then carry no sum.

    Splits initial copies in the same way as messages from their owner.
    """
    steps = (Step(s.attends, tuple(n for m in s.moves for n in split_move(m))) for s in plan.steps)
    moves = (m for copies in plan.start for m in split_move(bringing_moves(plan, copies)))
    start = map(_as_initial_copy, moves)
    return drop_empty(replace(plan, start=tuple(filter(len, start)), steps=tuple(steps)))


def bringing_moves(plan: Plan, copies: InitialCopy) -> Move:
    """Returns messages that would bring initial copies from owners; src -1: several owners."""
    owners = plan.partition.side(copies.side).owners
    owner = owners[copies.blocks.max(axis=1)]
    has_one_owner = ((owners[copies.blocks] == owner[:, None]) | (copies.blocks < 0)).all(axis=1)
    return Move(copies.tensors, copies.blocks, np.where(has_one_owner, owner, -1), copies.rank)


def _as_initial_copy(move: Move) -> InitialCopy:
    return InitialCopy(move.tensors, move.blocks, move.dst)


def _attended_with_others(plan: Plan, side: SideName) -> Callable[[Move], Bits]:
    """Returns a function that marks messages of blocks attended with other blocks: bool [rows].

    The function looks at the first rectangle in which the destination of inputs, or the source of
    sums, attends a block.
    """
    tensor, attends = "Q" if side == "q" else "KV", [attend for _, attend in plan.attends()]
    first = Table(plan, tensor, np.uint32)  # numbers of rectangles, 1 for the last
    width, number = np.zeros(1 + sum(map(len, attends)), np.intp), 0
    for attend in reversed(attends):
        blocks = attended_blocks(attend, tensor)
        numbers = np.arange(number := number + len(attend), number - len(attend), -1)
        width[numbers] = (blocks >= 0).sum(axis=1)
        first[attend.rank, blocks] = numbers[:, None]

    def is_shared(move: Move) -> Bits:
        rank = move.src if move.accumulates else move.dst
        rectangle = first[rank, move.blocks]
        number = rectangle.max(axis=1)
        attended = ((rectangle == number[:, None]) & (move.blocks >= 0)).sum(axis=1)
        return np.asarray(width[number] > attended)

    return is_shared


def _pieces(side: Side) -> Callable[[Move], Index]:
    """Returns a function that numbers the columns of a move by their piece."""
    chunk, is_empty = side.chunk.astype(np.intp), side.sizes == 0
    begin = np.array([min((r.start for r in c), default=-1) for c in side.chunks], np.intp)[chunk]
    stops = [c[0].stop if len(c) == 1 and c[0].step == 1 else -1 for c in side.chunks]
    end = np.array(stops, np.intp)[chunk]  # -1 for blocks of several ranges

    def pieces(move: Move) -> Index:
        blocks = move.blocks
        fullest = blocks[np.argmax((blocks >= 0).sum(axis=1))]
        order = np.lexsort((chunk[fullest], begin[fullest]))
        left, right = blocks[:, order[:-1]], blocks[:, order[1:]]
        is_absent = (left < 0) | (right < 0) | is_empty[left] | is_empty[right]
        is_contiguous = (chunk[left] == chunk[right]) | (end[left] == begin[right])
        is_joined = (is_absent | is_contiguous).all(axis=0) & ~is_absent.all(axis=0)
        piece = np.empty(blocks.shape[1], np.intp)
        piece[order] = np.concatenate([[0], np.cumsum(~is_joined)])
        return piece

    return pieces


def _by_columns(move: Move, piece: Index) -> list[Move]:
    columns = [piece == n for n in dict.fromkeys(piece.tolist())]
    if len(columns) == 1:
        return [move]
    return [Move(move.tensors, move.blocks[:, c], move.src, move.dst) for c in columns]


def per_block(plan: Plan) -> Plan:
    """Move([a, b], r, s)  -->  Move([a], r, s), Move([b], r, s)"""

    def split_move(move: Move) -> list[Move]:
        return _by_columns(move, np.arange(move.blocks.shape[1]))

    return _cut(plan, split_move)


def join_messages(plan: Plan) -> Plan:
    """Move([a], r, s), Move([b], r, s)  -->  Move([a, b], r, s)"""
    steps = (Step(step.attends, _join(step.moves)) for step in plan.steps)
    messages = _join(tuple(bringing_moves(plan, copies) for copies in plan.start))
    return replace(plan, start=tuple(map(_as_initial_copy, messages)), steps=tuple(steps))


def _join(moves: tuple[Move, ...]) -> tuple[Move, ...]:
    """Joins the messages of each pair of ranks and tensors, with blocks in the order of nodes."""
    return tuple(map(_by_pair, Step((), moves).joined().moves))


def _by_pair(move: Move) -> Move:
    block, src, dst = move.flat()
    ranks = int(max(src.max(), dst.max())) + 1
    pair, row = np.unique(src * ranks + dst, return_inverse=True)
    blocks = np.append(block, -1)[group_entries(row, len(pair))]
    return Move(move.tensors, blocks, *np.divmod(pair, ranks))
