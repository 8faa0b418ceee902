"""trim(plan)   the mask applied to a schedule that ignores it."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.batches import attends
from planner.ir import ADDS, READS, TENSORS, Attend, Held, Index, Move, Plan, Step
from planner.tiles import Tiles, tiles

Table = NDArray[np.bool_]
Tables = dict[str, Table]  # tensor -> [ranks, blocks]
CELLS = 1 << 24  # tiles of a node looked at at a time


def trim(plan: Plan) -> Plan:
    """Drop what the mask makes useless.

    Attend of dead tiles          -->  nothing; wholly dead blocks leave a rectangle
    Move of a copy nobody uses    -->  nothing
    Move of an empty accumulator  -->  nothing
    """
    return drop_empty(drop_unused(drop_dead(plan)))


def drop_dead(plan: Plan) -> Plan:
    """Attend(q, kv)  -->  the same without blocks that have no live tile in it."""
    live = _live_parts(tiles(plan), plan)
    steps = [Step(tuple(next(live) for _ in s.attends), s.moves) for s in plan.steps]
    return replace(plan, steps=tuple(filter(None, steps)))


def _live_parts(table: Tiles, plan: Plan) -> Iterator[Attend]:
    for some, _, joined in attends(plan):
        dead_q, dead_kv = dead_edges(table, joined)
        dead, end = np.logical_or(dead_q.any(axis=1), dead_kv.any(axis=1)), 0
        for attend in some:
            mine = slice(end, end := end + len(attend))
            if dead[mine].any():
                q, kv = np.where(dead_q[mine], -1, attend.q), np.where(dead_kv[mine], -1, attend.kv)
                attend = Attend(attend.rank, q, kv)
            yield attend


def dead_edges(table: Tiles, attend: Attend) -> tuple[Table, Table]:
    """Blocks of each rectangle without any live tile in it: bool [n, a] of q, [n, b] of kv."""
    q, kv = attend.q >= 0, attend.kv >= 0  # present, then: present and dead
    height = max(1, CELLS // max(1, q.shape[1] * kv.shape[1]))
    for at in range(0, len(attend), height):
        rows = slice(at, at + height)
        live = table.live(attend.q[rows, :, None], attend.kv[rows, None, :])
        q[rows] &= ~live.any(axis=2)
        kv[rows] &= ~live.any(axis=1)
    return q, kv


def drop_unused(plan: Plan) -> Plan:
    """Move of an input  -->  nothing, where no later attend or move of its destination reads it."""
    needed = {t: np.zeros((plan.ranks, len(plan.side(t))), bool) for t in READS[plan.pass_]}
    steps = list[Step]()
    for step in reversed(plan.steps):
        moves = tuple(m if m.accumulates else _needed_part(m, needed) for m in step.moves)
        copies = [(m.tensors, *m.flat()) for m in moves if not m.accumulates]
        for tensors, block, _, dst in copies:  # before it arrives a copy need not be there
            _mark(needed, tensors, dst, block, False)
        for tensors, block, src, _ in copies:
            _mark(needed, tensors, src, block, True)
        for attend in step.attends:
            for tensor, table in needed.items():
                block, rank = attend.flat(TENSORS[tensor].side)
                table[rank, block] = True
        steps.append(Step(step.attends, moves))
    start = [
        Held(h.tensors, _used(needed, h.tensors, h.blocks, h.rank), h.rank) for h in plan.start
    ]
    kept = tuple(filter(None, reversed(steps)))
    return replace(plan, start=tuple(filter(len, start)), steps=kept)


def _mark(tables: Tables, tensors: tuple[str, ...], rank: Index, block: Index, value: bool) -> None:
    for tensor in tensors:
        tables[tensor][rank, block] = value


def _used(
    needed: Tables, tensors: tuple[str, ...], blocks: NDArray[np.int32], rank: NDArray[np.int32]
) -> NDArray[np.int32]:
    """The blocks [n, w] of which `rank` [n] reads any of the tensors later; -1 for the others."""
    used = np.zeros(blocks.shape, bool)
    for tensor in tensors:
        used |= needed[tensor][rank[:, None], blocks]
    return np.where(used, blocks, -1)


def _needed_part(move: Move, needed: Tables) -> Move:
    blocks = _used(needed, move.tensors, move.blocks, move.dst)
    return move if (blocks == move.blocks).all() else Move(move.tensors, blocks, move.src, move.dst)


def drop_empty(plan: Plan) -> Plan:
    """Move of an accumulator  -->  nothing, where its source has nothing to hand over."""
    filled = {t: np.zeros((plan.ranks, len(plan.side(t))), bool) for t in ADDS[plan.pass_]}
    steps = list[Step]()
    for step in plan.steps:
        moves = tuple(_filled_part(m, filled) if m.accumulates else m for m in step.moves)
        handed = [(m.tensors, *m.flat()) for m in moves if m.accumulates]
        for tensors, block, src, _ in handed:
            _mark(filled, tensors, src, block, False)
        for tensors, block, _, dst in handed:
            _mark(filled, tensors, dst, block, True)
        for attend in step.attends:
            for tensor, table in filled.items():
                block, rank = attend.flat(TENSORS[tensor].side)
                table[rank, block] = True
        steps.append(Step(step.attends, moves))
    return replace(plan, steps=tuple(filter(None, steps)))


def _filled_part(move: Move, filled: Tables) -> Move:
    blocks = _used(filled, move.tensors, move.blocks, move.src)
    return move if (blocks == move.blocks).all() else Move(move.tensors, blocks, move.src, move.dst)
