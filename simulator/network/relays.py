"""Relays of blocks that one rank sends to many, or that many send to one, over a torus.

A plan says who has to have what; collectives of a torus pass it on from neighbour to neighbour,
so that a block crosses each link of a tree once:

    KV of 0 -> 1, 2, 3 on a ring      step s    0 -> 1, 0 -> 3        step s + 1    1 -> 2
    DKV of 1, 2, 3 -> 0               step s    2 -> 1                step s + 1    1 -> 0, 3 -> 0

Relays are ranks that get the block anyway, or add to the sum. Attends follow in the last step.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np

from planner.ir import Move, Plan, Step
from simulator.network.topology import Topology

Trees = Sequence[Sequence[int]]  # of each source, the rank before each rank
Row = tuple[tuple[str, ...], bytes, int, int]  # tensors, blocks, source, destination


def relayed(plan: Plan, topology: Topology) -> Plan:
    """Return the plan with blocks passed on along the topology's trees, where it has any."""
    if topology.tree is None or not any(map(_fans, plan.steps)):
        return plan
    trees = tuple(tuple(topology.tree(rank)) for rank in range(plan.ranks))
    steps = (part for step in plan.steps for part in _passed_on(step, trees))
    return replace(plan, steps=tuple(steps))


def _fans(step: Step) -> bool:
    """True if a rank sends in a step, or receives, more than once."""
    src, dst = (np.concatenate([getattr(m, s) for m in step.moves] or [[]]) for s in ("src", "dst"))
    return len(np.unique(src)) < len(src) or len(np.unique(dst)) < len(dst)


def _passed_on(step: Step, trees: Trees) -> Iterator[Step]:
    """Yield a step's messages tree level by tree level, then its attends."""
    levels = (_levels(step, trees, sums) for sums in (False, True))
    steps = [Step((), tuple(_moves([*a, *b]))) for a, b in zip_longest(*levels, fillvalue=[])]
    if len(steps) < 2:
        yield step
    else:
        yield from steps[:-1]
        yield Step(step.attends, steps[-1].moves)


def _levels(step: Step, trees: Trees, sums: bool) -> list[list[Row]]:
    """Sort messages by the level of their tree: from the root for copies, to it for sums."""
    groups = defaultdict[tuple[tuple[str, ...], bytes, int], list[Row]](list)
    for move in (move for move in step.moves if move.accumulates == sums):
        columns = map(bytes, move.blocks), move.src.tolist(), move.dst.tolist()
        for blocks, src, dst in zip(*columns, strict=True):
            root = dst if sums else src
            groups[move.tensors, blocks, root].append((move.tensors, blocks, src, dst))
    levels = defaultdict[int, list[Row]](list)
    for (_, _, root), rows in groups.items():
        for depth, row in _tree(root, rows, trees, sums):
            levels[depth].append(row)
    order = sorted(levels, reverse=sums)
    return [levels[depth] for depth in order]


def _tree(root: int, rows: list[Row], trees: Trees, sums: bool) -> Iterator[tuple[int, Row]]:
    """Yield (depth, message) of messages that share a root; a relay is an end of one of them."""
    before, ends = trees[root], {row[2] if sums else row[3]: row for row in rows}
    depths = {root: 0}

    def above(rank: int) -> int:
        parent = before[rank]
        while parent != root and parent not in ends:
            parent = before[parent]
        return parent

    def depth(rank: int) -> int:
        if rank not in depths:
            depths[rank] = depth(above(rank)) + 1
        return depths[rank]

    for rank, (tensors, blocks, _, _) in ends.items():
        ways = (rank, above(rank)) if sums else (above(rank), rank)
        yield depth(rank), (tensors, blocks, *ways)


def _moves(rows: list[Row]) -> Iterator[Move]:
    """Yield the messages as moves, those of equal tensors and width together."""
    kinds = defaultdict[tuple[tuple[str, ...], int], list[Row]](list)
    for row in rows:
        kinds[row[0], len(row[1])].append(row)
    for (tensors, _), same in kinds.items():
        blocks = np.array([np.frombuffer(row[1], np.int32) for row in same])
        src, dst = ([row[end] for row in same] for end in (2, 3))
        yield Move(tensors, blocks, src, dst)
