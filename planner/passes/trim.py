"""trim(plan)   dead-tile elimination: drops attends and messages that the mask does not need."""

from dataclasses import replace

import numpy as np

from ringloom.planner.analysis.partial_sums import (
    away_from_owners,
    transfers,
    travelling_accumulators,
)
from ringloom.planner.analysis.tables import Bits, Table, attended_blocks, of_inputs
from ringloom.planner.analysis.tiles import Tiles, dead_edges, tiles
from ringloom.planner.columns import distinct, row_index
from ringloom.planner.ir import Attend, InitialCopy, Move, Plan, Step
from ringloom.planner.partitions import Ints
from ringloom.planner.passes.exchanges import exchanges
from ringloom.planner.plans import one_plan

Needed = dict[str, Table]  # for the first of each group of inputs that travel: blocks read later


def trim(plan: Plan, regular: bool = True) -> Plan:
    """Drop attends and messages that the mask does not need.

    Attend of dead tiles              -->  nothing; wholly dead blocks are dropped from rectangles
    Move of copies that are not used  -->  nothing; `regular`: a complete exchange is kept or
                                           dropped as a whole
    Move of absent accumulators only  -->  nothing
    Move, InitialCopy of empty blocks -->  nothing
    """
    return drop_empty(drop_unused(drop_blank(drop_dead(one_plan(plan, "trim"))), regular))


def drop_blank(plan: Plan) -> Plan:
    """Move(blocks), InitialCopy(blocks)  -->  the same without empty blocks."""
    blank = {side: plan.partition.side(side).sizes == 0 for side in ("q", "kv")}
    if not any(map(np.any, blank.values())):
        return plan

    def left(node: Move | InitialCopy) -> Ints:
        return np.where(blank[node.side][node.blocks], -1, node.blocks)

    steps = (
        Step(s.attends, tuple(Move(m.tensors, left(m), m.src, m.dst) for m in s.moves))
        for s in plan.steps
    )
    start = tuple(InitialCopy(held.tensors, left(held), held.rank) for held in plan.start)
    return replace(plan, start=start, steps=tuple(steps))


def drop_dead(plan: Plan) -> Plan:
    """Attend(q, kv)  -->  the same without blocks that have no live tile in it"""
    table = tiles(plan)
    steps = (Step(tuple(_live_part(table, a) for a in s.attends), s.moves) for s in plan.steps)
    return replace(plan, steps=tuple(steps))


def _live_part(table: Tiles, attend: Attend) -> Attend:
    dead_q, dead_kv = dead_edges(table, attend)
    if not (dead_q.any() or dead_kv.any()):
        return attend
    rows = row_index(~np.asarray((dead_q | (attend.q < 0)).all(axis=1)))  # that have a live tile
    dead_q, dead_kv = dead_q[rows], dead_kv[rows]
    q, kv = (
        np.where(dead, -1, blocks[rows]) if dead.any() else blocks[rows]
        for dead, blocks in ((dead_q, attend.q), (dead_kv, attend.kv))
    )
    return Attend(attend.rank[rows], q, kv)


def drop_unused(plan: Plan, regular: bool = True) -> Plan:
    """Move of inputs  -->  nothing        if no later attend or move of its destination reads any

    `regular`: keeps or drops complete exchanges, and rows of initial copies, as a whole.
    """
    needed, steps = of_inputs(plan), list[Step]()
    for step in reversed(plan.steps):
        copies = _needed_messages(
            plan, [m for m in step.moves if not m.accumulates], needed, regular
        )
        left = iter(copies)
        moves = tuple(m if m.accumulates else next(left) for m in step.moves)
        for move in copies:  # a copy is not needed before it arrives
            for table in _of(needed, move.tensors):
                table[move.dst, move.blocks] = False
        for move in copies:
            for table in _of(needed, move.tensors):
                table[move.src, move.blocks] = True
        for attend in step.attends:
            for tensor, table in needed.items():
                table[attend.rank, attended_blocks(attend, tensor)] = True
        steps.append(Step(step.attends, moves))
    start = (_needed_copies(held, needed, regular) for held in plan.start)
    kept = tuple(reversed(steps))
    return replace(plan, start=tuple(filter(len, start)), steps=kept)


def _needed_messages(plan: Plan, moves: list[Move], needed: Needed, regular: bool) -> list[Move]:
    """Returns the messages of a step that are needed, with the exchanges they belong to."""
    used = [_is_read_later(needed, move) for move in moves]
    if all(rows.all() for rows in used):
        return moves
    for kind in dict.fromkeys(move.tensors for move in moves) if regular else ():
        own = [n for n, move in enumerate(moves) if move.tensors == kind]
        label = exchanges(plan.ranks, [moves[n] for n in own])
        kept = np.concatenate([used[n] for n in own])
        kept |= np.isin(label, distinct(label[kept & (label >= 0)]))
        parts = np.split(kept, np.cumsum([len(moves[n]) for n in own])[:-1])
        for n, rows in zip(own, parts, strict=True):
            used[n] = rows
    return [move.only(rows) for move, rows in zip(moves, used, strict=True)]


def _is_read_later(needed: Needed, move: Move) -> Bits:
    """Marks the messages with a block that is read later at the destination: bool [n]."""
    used = [table[move.dst, move.blocks].any(axis=1) for table in _of(needed, move.tensors)]
    read: Bits = np.logical_or.reduce(used)
    return read


def _of(needed: Needed, tensors: tuple[str, ...]) -> list[Table]:
    return [table for name, table in needed.items() if name in tensors]


def _needed_copies(held: InitialCopy, needed: Needed, regular: bool) -> InitialCopy:
    """Returns the initial copies that are read; OUT counts as read if its STATS are."""
    tables = _of(needed, ("STATS",) if held.tensors == ("OUT",) else held.tensors)
    used = np.logical_or.reduce([table[held.rank, held.blocks] for table in tables])
    if regular:
        used = np.broadcast_to(used.any(axis=1)[:, None], used.shape)
    return (
        held
        if used.all()
        else InitialCopy(held.tensors, np.where(used, held.blocks, -1), held.rank)
    )


def drop_empty(plan: Plan) -> Plan:
    """Move of accumulators  -->  nothing        if its source has none of them"""
    return without_empty_transfers(plan)[0]


def without_empty_transfers(plan: Plan) -> tuple[Plan, bool]:
    """Returns the plan without empty transfers, and True if its sums end at their owners."""
    kept, owned = dict[tuple[int, int], Move](), True
    for tensor in travelling_accumulators(plan):
        held = Table(plan, tensor, np.uint8)
        for number, sent in transfers(plan, tensor, held):
            for move, _, parts in sent:
                rows: Bits = np.asarray((parts > 0).any(axis=1))
                kept[number, id(move)] = move.only(rows)
        owned = owned and not away_from_owners(held).size
    steps = (
        Step(step.attends, tuple(kept.get((number, id(m)), m) for m in step.moves))
        for number, step in enumerate(plan.steps)
    )
    return replace(plan, steps=tuple(steps)), owned
