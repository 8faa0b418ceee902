"""Relays of one-to-many and many-to-one messages over a torus.

A plan lists messages from source to destination. On a torus, collectives relay them from neighbour
to neighbour, so that each link of a tree carries a block only once:

    KV of 0 -> 1, 2, 3 on a ring      step s    0 -> 1, 0 -> 3        step s + 1    1 -> 2
    DKV of 1, 2, 3 -> 0               step s    2 -> 1                step s + 1    1 -> 0, 3 -> 0

Only ranks that receive a block, or add to a sum, relay it. Attends are in the last step.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np

from ringloom.planner.ir import Move, Plan, Step
from ringloom.simulator.network.topology import Place, Topology

Trees = Sequence[Sequence[int]]  # for each source, the previous rank of each rank


def relayed(plan: Plan, topology: Topology) -> Plan:
    """Returns the plan with blocks relayed along the topology's routes, if it has any."""
    if (route := topology.route) is None or not any(map(_fans, plan.steps)):
        return plan
    ranks = range(plan.ranks)
    trees = [[_previous(route(src, dst, True)) for dst in ranks] for src in ranks]
    steps = (part for step in plan.steps for part in _passed_on(step, trees))
    return replace(plan, steps=tuple(steps))


def _previous(route: Sequence[Place]) -> int:
    """Returns the last rank on a route before its end; chips without a rank do not count."""
    return next((place for place in reversed(route[:-1]) if isinstance(place, int)), int(route[0]))


def _fans(step: Step) -> bool:
    """Returns True if a rank sends, or receives, more than one message in a step."""
    src, dst = (np.concatenate([getattr(m, s) for m in step.moves] or [[]]) for s in ("src", "dst"))
    return len(np.unique(src)) < len(src) or len(np.unique(dst)) < len(dst)


def _passed_on(step: Step, trees: Trees) -> Iterator[Step]:
    """Yields a step for each level of copies from roots and sums to roots, then attends."""
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
    """Yields the messages of each level of the trees, from the root on."""
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
        src, dst = (end[rows], near[rows]) if sums else (near[rows], end[rows])
        yield Move(move.tensors, move.blocks[rows], src, dst)


def _tree(root: int, ends: list[int], previous: Sequence[int]) -> tuple[list[int], list[int]]:
    """Returns the depth of each end, and its parent, which is another end or the root."""
    depths, relays = {root: 0}, {root, *ends}

    def parent_of(rank: int) -> int:
        parent = previous[rank]
        while parent not in relays:
            parent = previous[parent]
        return parent

    def depth(rank: int) -> int:
        if rank not in depths:
            depths[rank] = depth(parent_of(rank)) + 1
        return depths[rank]

    return [*map(depth, ends)], [*map(parent_of, ends)]
