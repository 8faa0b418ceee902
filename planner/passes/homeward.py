"""homeward(plan), direct(plan)   nothing stops over at a rank that has no use for it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from planner.batches import attended, sent
from planner.ir import ADDS, READS, TENSORS, Index, Move, Plan, Step
from planner.liveness import slots
from planner.passes.trim import drop_empty


def direct(plan: Plan) -> Plan:
    """Inputs skip the ranks that would only pass them on; the home sends them instead.

    Move(b, home, x, step s), Move(b, x, z, step t)  -->  Move(b, home, z, step t)
    when x attends nothing with b. Homes keep their inputs, so nobody needs another buffer.
    """
    useful = {"q": _users(plan, "q"), "kv": _users(plan, "kv")}
    if not any(_passes_on(plan, tensor, useful) for tensor in READS[plan.pass_]):
        return plan
    homes = {side: plan.partition.side(side).homes for side in useful}

    def rewrite(move: Move) -> list[Move]:
        if move.accumulates:
            return [move]
        use = useful[move.side]
        stops = (move.blocks >= 0) & ~use[move.dst[:, None], move.blocks]
        relayed = (move.blocks >= 0) & ~use[move.src[:, None], move.blocks] & ~stops
        if not (stops.any() or relayed.any()):
            return [move]
        kept = np.where(stops | relayed, -1, move.blocks)
        row, column = np.nonzero(relayed)
        block = move.blocks[row, column]
        home = homes[move.side][block]
        return [
            Move(move.tensors, kept, move.src, move.dst),
            Move(move.tensors, block, home, move.dst[row]),
        ]

    steps = [Step(s.attends, tuple(n for m in s.moves for n in rewrite(m))) for s in plan.steps]
    same = all(a.moves == b.moves for a, b in zip(steps, plan.steps, strict=True))
    return plan if same else replace(plan, steps=tuple(filter(None, steps)))


def _passes_on(plan: Plan, tensor: str, useful: dict[str, NDArray[np.bool_]]) -> bool:
    """Whether any copy comes to, or from, a rank that has no use for it."""
    use = useful[TENSORS[tensor].side]
    return not all(
        use[dst, block].all() and use[src, block].all() for block, src, dst, _ in sent(plan, tensor)
    )


def _users(plan: Plan, side: Literal["q", "kv"]) -> NDArray[np.bool_]:
    """Who attends with a block, owns it or held it from the start: bool [ranks, blocks]."""
    blocks = plan.partition.side(side)
    table = np.zeros((plan.ranks, len(blocks)), bool)
    table[blocks.homes, np.arange(len(blocks))] = True
    for block, rank, _ in attended(plan, side):
        table[rank, block] = True
    for held in plan.start:
        if held.side == side:
            block, rank = held.flat()
            table[rank, block] = True
    return table


def homeward(plan: Plan) -> Plan:
    """Accumulators skip the ranks that add nothing to them.

    Move(b, y, x, step s), ..., Move(b, w, z, step t)  -->  Move(b, y, z, s) if z is b's home,
                                                            Move(b, y, z, t) if z adds to it
    when the ranks from x to w add nothing. After its last contribution an accumulator goes
    straight home; until its next one it waits where it is. Both are exact: whatever leaves in
    between takes it along towards home, and a hand-over that is then empty is dropped.
    """
    before = plan
    for tensor in ADDS[plan.pass_]:
        plan = _shortened(plan, tensor)
    return plan if plan is before else _fit_buffers(drop_empty(plan))


NOTHING, MIXED = -1, -2  # what a rank has of a block, beside the number of the one hand-over


def _shortened(plan: Plan, tensor: str) -> Plan:
    flat = [move.flat() for _, move in plan.moves() if move.tensors == (tensor,)]
    if not flat:
        return plan
    block, source, target = (np.concatenate(column) for column in zip(*flat, strict=True))
    ends = np.cumsum([len(part[0]) for part in flat])
    first, relayed = _chains(plan, tensor, block, source, target, ends)
    if not relayed.any():
        return plan
    chained = ~relayed & (first != np.arange(len(first)))
    home = chained & (target == plan.side(tensor).homes[block])
    source[chained] = source[first[chained]]
    target[first[home]] = target[home]
    dropped = relayed | home
    dropped[first[home]] = False
    target[dropped] = source[dropped]
    columns = zip(*(np.split(c, ends[:-1]) for c in (source, target)), strict=True)
    return _rerouted(plan, tensor, iter(columns))


def _chains(
    plan: Plan, tensor: str, block: Index, source: Index, target: Index, ends: Index
) -> tuple[Index, NDArray[np.bool_]]:
    """For each hand-over: the first of its chain of untouched relays, and whether one follows."""
    first, relayed = np.arange(len(block)), np.zeros(len(block), bool)
    content = np.full((plan.ranks, len(plan.side(tensor))), NOTHING, np.int64)
    spans = iter(np.split(first.copy(), ends[:-1]))
    for step in plan.steps:
        handed = [next(spans) for move in step.moves if move.tensors == (tensor,)]
        for number in handed:
            untouched = content[source[number], block[number]]
            content[source[number], block[number]] = NOTHING
            relay = untouched >= 0
            relayed[untouched[relay]] = True
            first[number[relay]] = first[untouched[relay]]
        for attend in step.attends:
            mixed, rank = attend.flat(TENSORS[tensor].side)
            content[rank, mixed] = MIXED
        if handed:
            number = np.concatenate(handed)
            _arrive(content, block[number], target[number], number)
    return first, relayed


def _arrive(content: NDArray[np.int64], block: Index, dst: Index, number: Index) -> None:
    """Note what lies at each destination now: one untouched arrival, or a mixture."""
    _, inverse, count = np.unique(
        dst * content.shape[1] + block, return_inverse=True, return_counts=True
    )
    alone = (content[dst, block] == NOTHING) & (count[inverse] == 1)
    content[dst, block] = np.where(alone, number, MIXED)


def _rerouted(plan: Plan, tensor: str, routes: Iterator[tuple[Index, Index]]) -> Plan:
    """The plan with new (source, target) per hand-over; equal ones mean that it falls away."""

    def rewrite(move: Move) -> list[Move]:
        if move.tensors != (tensor,):
            return [move]
        source, target = next(routes)
        row, column = np.nonzero(move.blocks >= 0)
        same = (target == move.dst[row]) & (source == move.src[row])
        if same.all():
            return [move]
        kept = np.full_like(move.blocks, -1)
        kept[row[same], column[same]] = move.blocks[row[same], column[same]]
        block = move.blocks[row, column][~same]
        return [
            Move((tensor,), kept, move.src, move.dst),
            Move((tensor,), block, source[~same], target[~same]),
        ]

    steps = [Step(s.attends, tuple(n for m in s.moves for n in rewrite(m))) for s in plan.steps]
    return replace(plan, steps=tuple(filter(None, steps)))


def _fit_buffers(plan: Plan) -> Plan:
    """New routes may need other slots than the old ones: declare what they need at the most."""
    needs = tuple(
        (tensor, max(declared, int(slots(plan, tensor).max(initial=0))))
        if TENSORS[tensor].accumulates
        else (tensor, declared)
        for tensor, declared in plan.buffers
    )
    return replace(plan, buffers=needs)
