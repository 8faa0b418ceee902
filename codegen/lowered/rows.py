"""Rows(plan, loops)   a loop form carried out once over the blocks: what statements do when."""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from codegen.lowered.sums import Cell, Rectangles
from planner.errors import PlanError
from planner.ir import Plan
from planner.loops.expand import SIDES, Expansion
from planner.loops.form import HELD, Attend, Ints, Loops, Part, Return, Send
from planner.loops.values import Copies, Messages, owned

Handing = Send | Return  # statements that may move sums


@dataclass(frozen=True)
class Moment:
    """One step: rectangles, sums that arrive, and what stays, by side and name, as it begins.

    Where sums of some pieces of a value go, their messages have all blocks of it.
    """

    stay: dict[tuple[str, str], Ints]
    attends: dict[Attend, Rectangles] = field(default_factory=dict)
    sums: dict[Handing, Copies] = field(default_factory=dict)  # as they arrive


class Rows:
    """All steps, and what each message of sums takes along.

    `taken` has the blocks whose sums each rank sends [ranks, w], by step and cell; `times` the
    steps of these. `tables` are those of the values that stay in the end, what ranks own and what
    they hold at first among them, and what exchanges bring; `aged` by side, name and first step.
    """

    def __init__(self, plan: Plan, loops: Loops) -> None:
        self.ranks, state = plan.ranks, Expansion(loops, plan)
        self.taken: dict[tuple[int, Cell], Ints] = {}
        self.times: dict[Cell, list[int]] = defaultdict(list)
        self.moments = [self._moment(state, t) for t in range(loops.steps)]
        every = {(x, *key): v.table for x in SIDES for key, v in state.values[x].named.items()}
        self.aged = {(x, name, t): table for (x, name, t), table in every.items() if t is not None}
        passed = {k[:2]: table for k, table in self.aged.items() if k[1] in loops.exchanges}
        self.tables = staying(state) | passed
        for side in SIDES:
            self.tables[side, "owned"] = owned(plan.ranks, plan.partition.side(side))
        first = self.moments[0].stay if self.moments else {}
        self.tables |= {key: table for key, table in first.items() if key[1] == HELD}
        self.pieces: dict[tuple[str, str], int] = defaultdict(int)  # of each value, at the most
        tables = [*self.tables.items(), *(item for m in self.moments for item in m.stay.items())]
        for value, table in (*tables, *((key[:2], x) for key, x in every.items())):
            self.pieces[value] = max(self.pieces[value], table.shape[1])

    def _moment(self, state: Expansion, t: int) -> Moment:
        moment, sent = Moment(staying(state)), dict[Cell, list[Messages]]()
        for s in state.loops.statements:
            if not s.when.on(t):
                continue
            if isinstance(s, Attend):
                tables = state.value(s.q[0], "q", t).table, state.value(s.kv[0], "kv", t).table
                rank, *_ = state.attend(s, t)
                moment.attends[s] = Rectangles(s, t, rank, tables, state.coordinates)
                continue
            messages = state.moved(s, t)
            if not isinstance(s, Handing) or not s.sums:
                continue
            ((src, dst, blocks),) = messages
            if isinstance(s, Send):
                sent.setdefault(source(s), []).append((src, dst, blocks))
                if cut(s):  # all blocks of the value that the message has pieces of
                    value = Part(s.parts[0].value, s.parts[0].lag)
                    blocks = state.blocks(value, s.side, t, src)
            elif (exchange := state.loops.exchanges.get(s.name)) and exchange.again:
                table = state.value(Part(s.name, s.lag), s.side, t).table.reshape(self.ranks, -1)
                sent.setdefault(source(s), []).append((state.everyone, state.everyone, table))
            moment.sums[s] = dst.astype(np.int32), blocks
        state.arrive()
        for cell, messages in sent.items():
            self.taken[t, cell] = self._table(messages, f"step {t}")
            self.times[cell].append(t)
        return moment

    def _table(self, messages: list[Messages], where: str) -> Ints:
        """The blocks that each rank sends; a rank sends a sum once."""
        width = max(blocks.shape[1] for _, _, blocks in messages)
        table = np.full((self.ranks, width), -1, np.int32)
        for src, _, blocks in messages:
            if (table[src] >= 0).any() or len(np.unique(src)) < len(src):
                raise PlanError(f"{where}: a rank sends sums of one value in several messages")
            table[src, : blocks.shape[1]] = blocks
        return table


def source(s: Handing) -> Cell:
    """The cell that sums are taken from, all of it."""
    if isinstance(s, Return):
        return s.tensors[0], s.name
    if len({(p.value, p.lag) for p in s.parts}) > 1:
        raise PlanError(f"sums of {' + '.join(p.value for p in s.parts)} go together")
    return s.tensors[0], s.parts[0].value


def cut(s: Send) -> bool:
    """True if a message has some pieces of a value."""
    return any(p.pieces for p in s.parts)


def staying(state: Expansion) -> dict[tuple[str, str], Ints]:
    """The tables of the values that stay, by side and name."""
    return {
        (side, name): value.table
        for side in SIDES
        for (name, born), value in state.values[side].named.items()
        if born is None
    }
