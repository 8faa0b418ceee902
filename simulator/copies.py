"""When the copies of inputs arrive where; what is at home or held from the start is there at 0.

Tensors that always travel together share one table. A copy that never comes is never ready.
"""

import numpy as np
from numpy.typing import NDArray

from planner.ir import READS, TENSORS, Attend, Held, Move, Plan
from planner.partitions import Ints
from simulator.cells import Cells
from simulator.costs import Floats
from simulator.rounds import Where, where


class Arrivals:
    """When every (rank, block) of one side was offered by its source, and when it arrives."""

    def __init__(self, plan: Plan, tensor: str) -> None:
        side = plan.side(tensor)
        self._cells = Cells(plan.ranks, len(side))
        times: Floats = np.full((*self._cells.shape, 2), np.inf)
        times[:, -1] = times[side.homes, np.arange(len(side))] = 0.0
        self._times = times.reshape(-1, 2)

    def put(self, rank: Where, blocks: Ints, times: Floats) -> None:
        """Each row's blocks were offered and arrive on its rank at `times` [rows, 2]."""
        cells = self._cells.of(rank, blocks)
        if blocks.shape[1] == 1:
            self._times[cells] = times
        else:
            row, column = np.nonzero(blocks >= 0)
            self._times[cells[row, column]] = times[row]

    def ready(self, rank: Where, blocks: Ints) -> Floats:
        """When all of each row's blocks are on its rank: [rows]."""
        found = self._times[:, 1][self._cells.of(rank, blocks)]
        times: Floats = found if found.ndim == 1 else found.max(axis=1)
        return times

    def exposed(self, rank: Where, blocks: Ints, free: Floats) -> Floats:
        """How long each rank, free from then on, waits for blocks already offered: [rows]."""
        times = self._times[self._cells.of(rank, blocks)].reshape(len(blocks), -1, 2)
        waited: Floats = (times[..., 1] - np.maximum(times[..., 0], free[:, None])).max(axis=1)
        return np.maximum(waited, 0.0)


class Copies:
    """The arrivals of all inputs that travel or are held; rows as in `simulator.rounds`."""

    def __init__(self, plan: Plan) -> None:
        self._tables = _together(plan)
        self._sides = {
            side: list(dict.fromkeys(a for t, a in self._tables.items() if TENSORS[t].side == side))
            for side in ("q", "kv")
        }
        for held in plan.start:
            self._put(held, where(held.rank), np.zeros((len(held), 2)))

    def send(self, move: Move, src: Where) -> Floats | None:
        """When everything that each message carries is at its source; None: from the start."""
        return _last([table.ready(src, move.blocks) for table in self._of(move)])

    def attend(self, node: Attend, rank: Where) -> Floats | None:
        """When all the inputs of each row are on its rank; None: from the start."""
        return _last([table.ready(rank, blocks) for table, blocks in self._read(node)])

    def exposed(self, node: Attend, rank: Where, free: Floats) -> Floats:
        """How long each rank, free from then on, waits for messages under way: [rows]."""
        found = _last([table.exposed(rank, blocks, free) for table, blocks in self._read(node)])
        return np.zeros(len(node)) if found is None else found

    def arrive(self, move: Move, dst: Where, offered: Floats, arrival: Floats) -> None:
        """Every message of a move of inputs was offered and will arrive then: [rows] each."""
        self._put(move, dst, np.stack([offered, arrival], axis=1))

    def _put(self, node: Move | Held, rank: Where, times: Floats) -> None:
        for table in self._of(node):
            table.put(rank, node.blocks, times)

    def _of(self, node: Move | Held) -> list[Arrivals]:
        return list(dict.fromkeys(self._tables[t] for t in node.tensors if t in self._tables))

    def _read(self, node: Attend) -> list[tuple[Arrivals, NDArray[np.int32]]]:
        sides = ("q", node.q), ("kv", node.kv)
        return [(table, blocks) for side, blocks in sides for table in self._sides[side]]


def _last(times: list[Floats]) -> Floats | None:
    if len(times) < 2:
        return times[0] if times else None
    found: Floats = np.max(times, axis=0)
    return found


def _together(plan: Plan) -> dict[str, Arrivals]:
    """Each input that travels or is held, with the table of all those it always goes with."""
    messages = {m.tensors for _, m in plan.moves()} | {h.tensors for h in plan.start}
    company = {t: frozenset(m for m in messages if t in m) for t in READS[plan.pass_]}
    tables = {seen: Arrivals(plan, t) for t, seen in company.items() if seen}
    return {t: tables[seen] for t, seen in company.items() if seen}
