"""Counts pairs, blocks and cells of a plan, in the units of the formulas."""

from dataclasses import dataclass
from fractions import Fraction
from operator import add

import numpy as np

from ringloom.planner.analysis.balance import loads
from ringloom.planner.analysis.messages import reaches_owner
from ringloom.planner.ir import Plan


def sent_blocks(plan: Plan) -> dict[str, tuple[Fraction, Fraction]]:
    """Returns (blocks sent, finished blocks sent) per tensor, on average over ranks.

    A block is a rank's share of the tensor; a finished block is a complete result for its owner.
    """
    sums = dict[str, tuple[Fraction, Fraction]]()
    for number, move in plan.moves():
        complete = reaches_owner(plan, number, move)
        for tensor in move.tensors:
            side = plan.side(tensor)
            sizes = np.append(side.sizes * side.head_counts, 0)
            rows, total = sizes[move.blocks].sum(axis=1), int(sizes.sum())
            shares = (Fraction(int(part.sum()), total) for part in (rows, rows[complete]))
            sent, finished = map(add, sums.get(tensor, (Fraction(0), Fraction(0))), shares)
            sums[tensor] = sent, finished
    return sums


@dataclass(frozen=True)
class Idle:
    """The idle share of a lockstep run, counted in three ways."""

    cells_of_square: float  # idle cells over P^2, as DistFlashAttn prints
    cells_of_schedule: float  # idle cells over P x rounds
    areas: float  # pairs: 1 - mean / busiest, round by round


def measure_idle(plan: Plan) -> Idle:
    """Returns the idle share; a cell is a rank in a round, idle if it attends nothing."""
    load, ranks = loads(plan), plan.ranks
    idle_cells = int((load == 0).sum())
    time = int(load.max(axis=1).sum()) * ranks
    areas = 1 - int(load.sum()) / time if time else 0.0
    return Idle(idle_cells / ranks**2, idle_cells / load.size if load.size else 0.0, areas)


def critical_pairs(plan: Plan) -> int:
    """Returns the (query, key, head) triples of the busiest rank, summed over rounds."""
    return int(loads(plan).max(axis=1).sum())


def cells_speedup(plan: Plan) -> float:
    """Returns busy cells / rounds: the speedup if all cells take equally long."""
    return int((loads(plan) > 0).sum()) / plan.rounds
