"""trim(plan)   dead-tile elimination: drops attends and messages that the mask makes useless."""

from dataclasses import replace

import numpy as np

from ringloom.planner.analysis.partial_sums import away, transfers, travelling
from ringloom.planner.analysis.tables import Bits, Table, attended_blocks, of_inputs
from ringloom.planner.analysis.tiles import Tiles, dead_edges, tiles
from ringloom.planner.columns import chosen, distinct
from ringloom.planner.ir import Attend, InitialCopy, Move, Plan, Step
from ringloom.planner.partitions import Ints
from ringloom.planner.passes.exchanges import exchanges
from ringloom.planner.plans import one_plan

Needed = dict[str, Table]  # of the first of each group of inputs that travel: what is read later


def trim(plan: Plan, regular: bool = True) -> Plan:
    """Drop what the mask makes useless.

    Attend of dead tiles              -->  nothing; wholly dead blocks leave a rectangle
    Move of copies that are not used  -->  nothing; a complete exchange goes whole, or not at all,
                                           if the plan is to stay `regular`
    Move of absent accumulators only  -->  nothing
    Move, InitialCopy of blocks of no token  -->  nothing
    """
    return drop_empty(drop_unused(drop_blank(drop_dead(one_plan(plan, "trim"))), regular))


def drop_blank(plan: Plan) -> Plan:
    """Move(blocks), InitialCopy(blocks)  -->  the same without blocks that have no token."""
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
    """Attend(q, kv)  -->  the same without blocks that have no live tile in it."""
    table = tiles(plan)
    steps = (Step(tuple(_live_part(table, a) for a in s.attends), s.moves) for s in plan.steps)
    return replace(plan, steps=tuple(steps))


def _live_part(table: Tiles, attend: Attend) -> Attend:
    dead_q, dead_kv = dead_edges(table, attend)
    if not (dead_q.any() or dead_kv.any()):
        return attend
    rows = chosen(~np.asarray((dead_q | (attend.q < 0)).all(axis=1)))  # that have a live tile
    dead_q, dead_kv = dead_q[rows], dead_kv[rows]
    q, kv = (
        np.where(dead, -1, blocks[rows]) if dead.any() else blocks[rows]
        for dead, blocks in ((dead_q, attend.q), (dead_kv, attend.kv))
    )
    return Attend(attend.rank[rows], q, kv)


def drop_unused(plan: Plan, regular: bool = True) -> Plan:
    """Move of inputs  -->  nothing, where no later attend or move of its destination reads any.

    `regular`: of a complete exchange, either every message stays or none does, and whole rows of
    copies that are there from the start.
    """
    needed, steps = of_inputs(plan), list[Step]()
    for step in reversed(plan.steps):
        copies = _needed(plan, [m for m in step.moves if not m.accumulates], needed, regular)
        left = iter(copies)
        moves = tuple(m if m.accumulates else next(left) for m in step.moves)
        for move in copies:  # before it arrives a copy need not be there
            for table in _of(needed, move.tensors):
                table[move.dst, move.blocks] = False
        for move in copies:
            for table in _of(needed, move.tensors):
                table[move.src, move.blocks] = True
        for attend in step.attends:
            for tensor, table in needed.items():
                table[attend.rank, attended_blocks(attend, tensor)] = True
        steps.append(Step(step.attends, moves))
    start = (_still_held(held, needed, regular) for held in plan.start)
    kept = tuple(reversed(steps))
    return replace(plan, start=tuple(filter(len, start)), steps=kept)


def _needed(plan: Plan, moves: list[Move], needed: Needed, regular: bool) -> list[Move]:
    """Returns the messages of a step that are needed, and the exchanges that they belong to."""
    used = [_read(needed, move) for move in moves]
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


def _read(needed: Needed, move: Move) -> Bits:
    """Returns True for messages of which any block is read later at the destination: bool [n]."""
    used = [table[move.dst, move.blocks].any(axis=1) for table in _of(needed, move.tensors)]
    read: Bits = np.logical_or.reduce(used)
    return read


def _of(needed: Needed, tensors: tuple[str, ...]) -> list[Table]:
    return [table for name, table in needed.items() if name in tensors]


def _still_held(held: InitialCopy, needed: Needed, regular: bool) -> InitialCopy:
    """Whole rows of copies, or blocks, that are read on their rank; OUT is, where STATS are."""
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
    """Move of accumulators  -->  nothing, where its source has none of them."""
    return filled(plan)[0]


def filled(plan: Plan) -> tuple[Plan, bool]:
    """Returns the plan without empty transfers; True if sums that travel end at their owners."""
    kept, owned = dict[tuple[int, int], Move](), True
    for tensor in travelling(plan):
        held = Table(plan, tensor, np.uint8)
        for number, sent in transfers(plan, tensor, held):
            for move, _, parts in sent:
                rows: Bits = np.asarray((parts > 0).any(axis=1))
                kept[number, id(move)] = move.only(rows)
        owned = owned and not away(held).size
    steps = (
        Step(step.attends, tuple(kept.get((number, id(m)), m) for m in step.moves))
        for number, step in enumerate(plan.steps)
    )
    return replace(plan, steps=tuple(steps)), owned
