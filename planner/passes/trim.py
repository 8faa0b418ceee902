"""trim(plan)   drops attends and messages that the mask does not need (dead-tile elimination)."""

from dataclasses import replace

import numpy as np

from ringloom.planner.analysis.partial_sums import (
    away_from_owners,
    transfers,
    travelling_accumulators,
)
from ringloom.planner.analysis.tables import Bits, Table, attended_blocks, input_tables
from ringloom.planner.analysis.tiles import Tiles, dead_edges, tiles
from ringloom.planner.columns import distinct_values, row_index
from ringloom.planner.ir import Attend, InitialCopy, Move, Plan, Step
from ringloom.planner.partitions import Ints
from ringloom.planner.passes.exchanges import exchanges
from ringloom.planner.plans import one_plan

Needed = dict[str, Table]  # blocks read later, for the first of the inputs that travel together


def trim(plan: Plan, regular: bool = True) -> Plan:
    """Drops attends and messages that the mask does not need.

    Attend of dead tiles              -->  nothing; rectangles lose blocks without live tiles
    Move of copies that are not used  -->  nothing; `regular`: a complete exchange stays complete
                                           if any of its messages is used
    Move of absent accumulators only  -->  nothing
    Move, InitialCopy of empty blocks -->  nothing
    """
    return drop_empty(drop_unused(drop_blank(drop_dead(one_plan(plan, "trim"))), regular))


def drop_blank(plan: Plan) -> Plan:
    """Move(blocks), InitialCopy(blocks)  -->  the same without empty blocks."""
    is_empty = {side: plan.partition.side(side).sizes == 0 for side in ("q", "kv")}
    if not any(map(np.any, is_empty.values())):
        return plan

    def without_empty(node: Move | InitialCopy) -> Ints:
        return np.where(is_empty[node.side][node.blocks], -1, node.blocks)

    steps = (
        Step(s.attends, tuple(Move(m.tensors, without_empty(m), m.src, m.dst) for m in s.moves))
        for s in plan.steps
    )
    start = tuple(
        InitialCopy(copies.tensors, without_empty(copies), copies.rank) for copies in plan.start
    )
    return replace(plan, start=start, steps=tuple(steps))


def drop_dead(plan: Plan) -> Plan:
    """Attend(q, kv)  -->  the same without blocks that have no live tile in the rectangle"""
    table = tiles(plan)
    steps = (Step(tuple(_live_part(table, a) for a in s.attends), s.moves) for s in plan.steps)
    return replace(plan, steps=tuple(steps))


def _live_part(table: Tiles, attend: Attend) -> Attend:
    dead_q, dead_kv = dead_edges(table, attend)
    if not (dead_q.any() or dead_kv.any()):
        return attend
    rows = row_index(~np.asarray((dead_q | (attend.q < 0)).all(axis=1)))  # with a live tile
    dead_q, dead_kv = dead_q[rows], dead_kv[rows]
    q, kv = (
        np.where(dead, -1, blocks[rows]) if dead.any() else blocks[rows]
        for dead, blocks in ((dead_q, attend.q), (dead_kv, attend.kv))
    )
    return Attend(attend.rank[rows], q, kv)


def drop_unused(plan: Plan, regular: bool = True) -> Plan:
    """Move of inputs  -->  nothing        if its destination never attends or sends the blocks

    `regular`: keeps a complete exchange, or a row of initial copies, if any part of it is used.
    """
    needed, steps = input_tables(plan), list[Step]()
    for step in reversed(plan.steps):
        copies = _needed_messages(
            plan, [m for m in step.moves if not m.accumulates], needed, regular
        )
        remaining = iter(copies)
        moves = tuple(m if m.accumulates else next(remaining) for m in step.moves)
        for move in copies:  # a copy is not needed before it arrives
            for table in _tables_of(needed, move.tensors):
                table[move.dst, move.blocks] = False
        for move in copies:
            for table in _tables_of(needed, move.tensors):
                table[move.src, move.blocks] = True
        for attend in step.attends:
            for tensor, table in needed.items():
                table[attend.rank, attended_blocks(attend, tensor)] = True
        steps.append(Step(step.attends, moves))
    start = (_needed_copies(copies, needed, regular) for copies in plan.start)
    return replace(plan, start=tuple(filter(len, start)), steps=tuple(reversed(steps)))


def _needed_messages(plan: Plan, moves: list[Move], needed: Needed, regular: bool) -> list[Move]:
    """Returns the needed messages of a step; `regular`: with all messages of their exchanges."""
    marks = [_is_read_later(needed, move) for move in moves]
    if all(rows.all() for rows in marks):
        return moves
    for kind in dict.fromkeys(move.tensors for move in moves) if regular else ():
        numbers = [n for n, move in enumerate(moves) if move.tensors == kind]
        label = exchanges(plan.ranks, [moves[n] for n in numbers])
        keep = np.concatenate([marks[n] for n in numbers])
        keep |= np.isin(label, distinct_values(label[keep & (label >= 0)]))
        parts = np.split(keep, np.cumsum([len(moves[n]) for n in numbers])[:-1])
        for n, rows in zip(numbers, parts, strict=True):
            marks[n] = rows
    return [move.select(rows) for move, rows in zip(moves, marks, strict=True)]


def _is_read_later(needed: Needed, move: Move) -> Bits:
    """Marks the messages with a block that the destination reads later: bool [n]."""
    tables = _tables_of(needed, move.tensors)
    is_read: Bits = np.logical_or.reduce([t[move.dst, move.blocks].any(axis=1) for t in tables])
    return is_read


def _tables_of(needed: Needed, tensors: tuple[str, ...]) -> list[Table]:
    return [table for name, table in needed.items() if name in tensors]


def _needed_copies(copies: InitialCopy, needed: Needed, regular: bool) -> InitialCopy:
    """Returns the initial copies that their ranks read; reading STATS counts as reading OUT."""
    tables = _tables_of(needed, ("STATS",) if copies.tensors == ("OUT",) else copies.tensors)
    is_used = np.logical_or.reduce([table[copies.rank, copies.blocks] for table in tables])
    if regular:
        is_used = np.broadcast_to(is_used.any(axis=1)[:, None], is_used.shape)
    return (
        copies
        if is_used.all()
        else InitialCopy(copies.tensors, np.where(is_used, copies.blocks, -1), copies.rank)
    )


def drop_empty(plan: Plan) -> Plan:
    """Move of accumulators  -->  nothing        if its source has none of them"""
    return without_empty_transfers(plan)[0]


def without_empty_transfers(plan: Plan) -> tuple[Plan, bool]:
    """Drops empty transfers; also returns True if all sums still end at their owners."""
    filtered, all_owned = dict[tuple[int, int], Move](), True
    for tensor in travelling_accumulators(plan):
        copies = Table(plan, tensor, np.uint8)
        for number, group in transfers(plan, tensor, copies):
            for move, _, parts in group:
                rows: Bits = np.asarray((parts > 0).any(axis=1))
                filtered[number, id(move)] = move.select(rows)
        all_owned = all_owned and not away_from_owners(copies).size
    steps = (
        Step(step.attends, tuple(filtered.get((number, id(m)), m) for m in step.moves))
        for number, step in enumerate(plan.steps)
    )
    return replace(plan, steps=tuple(steps)), all_owned
