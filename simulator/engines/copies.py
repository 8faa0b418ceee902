"""Arrival times of copies of inputs; those at home, and initial copies, are ready at 0.

Tensors that always travel together share one table. A copy that never comes is never ready.
"""

from collections.abc import Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from planner.analysis.marks import at_home, cells, companies, readable
from planner.columns import rowwise
from planner.ir import INPUTS, TENSORS, Attend, Move, Plan
from planner.partitions import Ints
from simulator.timeline import Floats

Pairs = NDArray[np.complex128]  # (offered, arrives) as one number


class Arrivals:
    """Times at which each (rank, block) of one side was offered by its source and arrives.

    The two times are the two parts of one complex number, which moves in one piece.
    """

    def __init__(self, plan: Plan, tensor: str) -> None:
        self._cells = cells(plan, tensor)
        self._times = np.full(self._cells.size, complex(np.inf, np.inf))
        self._times[at_home(plan, tensor)] = self._times[self._cells.nowhere] = 0.0

    def put(self, rank: Ints, blocks: Ints, times: Floats) -> None:
        """Note that each row's blocks were offered and arrive on its rank at `times` [rows, 2]."""
        self._times[self._cells.of(rank, blocks)] = times.view(np.complex128)
        if blocks.shape[1] > 1:
            self._times[self._cells.nowhere] = 0.0

    def of(self, rank: Ints, blocks: Ints) -> Pairs:
        """Return when each row's blocks were offered and arrive on its rank: [rows, width]."""
        return self._times[self._cells.of(rank, blocks)]


class Copies:
    """The arrivals of all inputs that travel or are copied initially; rows as in `rounds`."""

    def __init__(self, plan: Plan) -> None:
        self._tables = _together(plan)
        self._sides = {
            side: list(dict.fromkeys(a for t, a in self._tables.items() if TENSORS[t].side == side))
            for side in ("q", "kv")
        }
        for copy in plan.start:
            for table in self._of(readable(copy)):
                table.put(copy.rank, copy.blocks, np.zeros((len(copy), 2)))

    def send(self, move: Move) -> list[Pairs]:
        """Return the times of everything that each message carries, at its source."""
        return [table.of(move.src, move.blocks) for table in self._of(move.tensors)]

    def attend(self, node: Attend) -> list[Pairs]:
        """Return the times of all the inputs of each row, on its rank."""
        sides = ("q", node.q), ("kv", node.kv)
        return [t.of(node.rank, blocks) for side, blocks in sides for t in self._sides[side]]

    def arrive(self, move: Move, offered: Floats, arrival: Floats) -> None:
        """Note when every message of a move of inputs was offered and arrives: [rows] each."""
        times = np.stack([offered, arrival], axis=1)
        for table in self._of(move.tensors):
            table.put(move.dst, move.blocks, times)

    def _of(self, tensors: Sequence[str]) -> list[Arrivals]:
        return list(dict.fromkeys(self._tables[t] for t in tensors if t in self._tables))


def ready(times: list[Pairs]) -> Floats | None:
    """Return the latest arrival of each row's blocks: [rows]; None if no input ever travels."""
    if not times:
        return None
    latest: Floats = reduce(np.maximum, (rowwise(np.maximum, t.imag) for t in times))
    return latest


def exposed(times: list[Pairs], free: Floats) -> Floats:
    """Return how long each rank, from `free` on, waits for blocks already offered: [rows]."""
    longest = np.zeros(len(free))
    for pairs in times:
        waited = pairs.imag - np.maximum(pairs.real, free[:, None])
        np.maximum(longest, rowwise(np.maximum, waited), out=longest)
    return longest


def _together(plan: Plan) -> dict[str, Arrivals]:
    """Map each input that travels or has initial copies to the table of those it goes with."""
    company = companies(plan)
    travels = {t: (TENSORS[t].side, company[t]) for t in INPUTS[plan.pass_] if company[t]}
    tables = {key: Arrivals(plan, t) for t, key in travels.items()}
    return {t: tables[key] for t, key in travels.items()}
