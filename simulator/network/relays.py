"""Relays of one-to-many and many-to-one messages over a torus.

A plan lists messages from source to destination. On a torus, collectives relay them from neighbour
to neighbour, so that a block crosses each link of a tree once:

    KV of 0 -> 1, 2, 3 on a ring      step s    0 -> 1, 0 -> 3        step s + 1    1 -> 2
    DKV of 1, 2, 3 -> 0               step s    2 -> 1                step s + 1    1 -> 0, 3 -> 0

Only ranks that receive the block, or add to the sum, relay it. Attends follow in the last step.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np

from ringloom.planner.ir import Move, Plan, Step
from ringloom.simulator.network.topology import Place, Topology

Trees = Sequence[Sequence[int]]  # of each source, the rank before each rank


def relayed(plan: Plan, topology: Topology) -> Plan:
    """Returns the plan with blocks relayed along the topology's routes, if it has any."""
    if (route := topology.route) is None or not any(map(_fans, plan.steps)):
        return plan
    ranks = range(plan.ranks)
    ways = ((route(src, dst, True) for dst in ranks) for src in ranks)
    trees = [[_before(way) for way in of_source] for of_source in ways]
    steps = (part for step in plan.steps for part in _passed_on(step, trees))
    return replace(plan, steps=tuple(steps))


def _before(way: Sequence[Place]) -> int:
    """Returns the last rank on a route before its end; chips without a rank do not count."""
    return next((place for place in reversed(way[:-1]) if isinstance(place, int)), int(way[0]))


def _fans(step: Step) -> bool:
    """True if a rank sends in a step, or receives, more than once."""
    src, dst = (np.concatenate([getattr(m, s) for m in step.moves] or [[]]) for s in ("src", "dst"))
    return len(np.unique(src)) < len(src) or len(np.unique(dst)) < len(dst)


def _passed_on(step: Step, trees: Trees) -> Iterator[Step]:
    """Yields messages level by level, copies from the root and sums to it, then attends."""
    moves = Step((), step.moves).joined().moves
    copies, sums = (
        [*zip_longest(*(_levels(move, trees) for move in moves if move.accumulates == kind))]
        for kind in (False, True)
    )
    levels = zip_longest(copies, reversed(sums), fillvalue=())
    steps = [Step((), tuple(filter(None, (*a, *b)))) for a, b in levels]
    if len(steps) < 2:
        yield step
    else:
        yield from steps[:-1]
        yield Step(step.attends, steps[-1].moves)


def _levels(move: Move, trees: Trees) -> Iterator[Move]:
    """Yields messages by the level of their tree, from the root on."""
    sums, groups = move.accumulates, defaultdict[tuple[bytes, int], list[int]](list)
    root, end = (move.dst, move.src) if sums else (move.src, move.dst)
    for row, key in enumerate(zip(map(bytes, move.blocks), root.tolist(), strict=True)):
        groups[key].append(row)
    near, depth = root.copy(), np.zeros(len(move), np.intp)
    for (_, source), rows in groups.items():
        depth[rows], near[rows] = _tree(source, end[rows].tolist(), trees[source])
    order = np.concatenate([*groups.values()])
    for level in sorted({*depth.tolist()}):
        rows = order[depth[order] == level]
        ways = (end[rows], near[rows]) if sums else (near[rows], end[rows])
        yield Move(move.tensors, move.blocks[rows], *ways)


def _tree(root: int, ends: list[int], before: Sequence[int]) -> tuple[list[int], list[int]]:
    """Returns the depth of each end, and its parent: a relaying end or the root."""
    depths, relays = {root: 0}, {root, *ends}

    def above(rank: int) -> int:
        parent = before[rank]
        while parent not in relays:
            parent = before[parent]
        return parent

    def depth(rank: int) -> int:
        if rank not in depths:
            depths[rank] = depth(above(rank)) + 1
        return depths[rank]

    return [*map(depth, ends)], [*map(above, ends)]
