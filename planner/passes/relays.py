"""homeward(plan), direct(plan)   remove relay hops through ranks that do not use the blocks."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from planner.analysis.liveness import slots
from planner.analysis.marks import Bits, Marks, at_owner, attended_blocks, cells, places
from planner.ir import ACCUMULATORS, INPUTS, TENSORS, Index, Move, Plan, Step
from planner.masks.mask import SideName
from planner.partitions import Ints
from planner.passes.exchanges import exchanges
from planner.passes.pieces import brought
from planner.passes.trim import drop_unused, filled, only_rows

NOTHING, MIXED = 0, -1  # what came to a rank; else it is one message, by its number from 1


def homeward(plan: Plan, regular: bool = True) -> Plan:
    """Accumulators skip the ranks that add nothing to them.

    Move(b, y, x, step s), Move(b, x, w, step t), ..., Move(b, v, z, step u)
    -->  Move(b, y, z, step s)        where z is the end of the way of the blocks b, and x adds
                                      nothing to them; nothing if y is z: there it may stay

    Whatever leaves z later takes along what came early; the plan stays as it is where that would
    not come to its owner. `regular`: once a rank is skipped, all later messages of that way go to
    its end too, so that one rule holds for every rank.
    """
    for tensor in ACCUMULATORS[plan.pass_]:
        plan = _shortened(plan, tensor, regular)
    return plan


def _shortened(plan: Plan, tensor: str, regular: bool) -> Plan:
    moves = [move for _, move in plan.moves() if move.tensors == (tensor,)]
    if not moves:
        return plan
    following, relays = _ways(plan, tensor, [len(m) for m in moves])
    if not relays.any():
        return plan
    src, dst = (np.concatenate([getattr(m, end) for m in moves]) for end in ("src", "dst"))
    last, onward = _ends(following), np.flatnonzero(following >= 0)
    before = np.full(len(relays), -1, np.intp)
    before[following[onward]] = onward
    straight = _from_there_on(relays, before, moves) if regular else relays.copy()
    straight[onward] |= relays[following[onward]]
    target = np.where(straight, dst[last], dst)
    target[relays] = src[relays]  # such rows fall away
    made, owned = filled(_rerouted(plan, (tensor,), moves, src, target))
    return _fit_buffers(made) if owned else plan


def _ways(plan: Plan, tensor: str, sizes: list[int]) -> tuple[Index, Bits]:
    """For each message: the next one with just its blocks, or -1; and whether it is a relay.

    A relay carries what one message brought and nothing else.
    """
    total = sum(sizes)
    following, relays = np.full(total, -1, np.intp), np.zeros(total, np.bool_)
    count = np.zeros(total, np.intp)  # blocks of each message
    came = np.zeros(cells(plan, tensor).size, np.int32)
    touched, at, nowhere = Marks(plan, tensor), 0, cells(plan, tensor).nowhere
    for step in plan.steps:
        sent = [move for move in step.moves if move.tensors == (tensor,)]
        first = at
        for move in sent:
            numbers = np.arange(at, at := at + len(move))
            entries = places(plan, tensor, move.src, move.blocks)
            count[numbers] = (move.blocks >= 0).sum(axis=1)
            one = _brought(came, entries, move.blocks, count, numbers)
            same = one >= 0
            following[one[same]] = numbers[same]
            relays[numbers] = same & ~touched.any(entries)
        for move in sent:
            entries = places(plan, tensor, move.src, move.blocks)
            came[entries] = NOTHING
            touched.set(entries, False)
        for attend in step.attends:
            touched.set(places(plan, tensor, attend.rank, attended_blocks(attend, tensor)), True)
        for move in sent:
            numbers = np.arange(first, first := first + len(move))
            _arrive(came, places(plan, tensor, move.dst, move.blocks), numbers, nowhere)
    return following, relays


def _brought(came: Ints, entries: Index, blocks: Ints, count: Index, numbers: Index) -> Index:
    """For each of these messages: the one that brought all of its blocks and no other, or -1."""
    before = came[entries]
    one = before.max(axis=1)
    same = (one > NOTHING) & ((before == one[:, None]) | (blocks < 0)).all(axis=1)
    same &= count[one - 1] == count[numbers]
    return np.where(same, one.astype(np.intp) - 1, -1)


def _arrive(came: Ints, entries: Index, numbers: Index, nowhere: int) -> None:
    """Note what lies at each destination now: one arrival, or a mixture."""
    arrivals = numbers[:, None] + 1
    mixed = came[entries] != NOTHING
    came[entries] = arrivals
    mixed |= came[entries] != arrivals  # two at once
    came[entries.T[mixed.T]] = MIXED
    came[nowhere] = NOTHING


def _ends(following: Index) -> Index:
    """The last message of the way that each one is on."""
    last = np.where(following < 0, np.arange(len(following)), following)
    while (last != (further := last[last])).any():
        last = further
    return last


def _from_there_on(marked: Bits, before: Index, moves: list[Move]) -> Bits:
    """The marked messages and all that come later on their ways; `before` is the one before."""
    later = marked.copy()
    for numbers in np.split(np.arange(len(later)), np.cumsum([len(m) for m in moves])[:-1]):
        later[numbers] |= (before[numbers] >= 0) & later[before[numbers]]
    return later


def _rerouted(
    plan: Plan, tensors: tuple[str, ...], moves: list[Move], source: Index, target: Index
) -> Plan:
    """The plan with another source and target for each message of some tensors."""
    ends = np.cumsum([len(move) for move in moves])[:-1]
    ways = zip(np.split(source, ends), np.split(target, ends), strict=True)

    def rewrite(step: Step) -> Iterator[Move]:
        for move in step.moves:
            if move.tensors != tensors:
                yield move
                continue
            src, dst = next(ways)
            same = np.array_equal(src, move.src) and np.array_equal(dst, move.dst)
            yield move if same else Move(tensors, move.blocks, src, dst)

    steps = [Step(s.attends, tuple(rewrite(s))) for s in plan.steps]
    return replace(plan, steps=tuple(filter(None, steps)))


def _fit_buffers(plan: Plan) -> Plan:
    """New ways may need other slots than the old ones: declare what they need at the most."""
    needs = (
        (tensor, max(declared, int(slots(plan, tensor).max(initial=0))))
        for tensor, declared in plan.buffers
    )
    return replace(plan, buffers=tuple(needs))


def direct(plan: Plan, regular: bool = True) -> Plan:
    """Inputs skip the ranks that would only pass them on.

    Move(b, y, x, step s), Move(b, x, z, step t)  -->  Move(b, y, z, step t)

    when x attends nothing with the blocks b; y is where their way begins, most often their owner.
    `regular`: messages of a complete exchange stay on their way, and once a rank is skipped, all
    later messages of that way come from y too.
    """
    useful = {side: _users(plan, side) for side in ("q", "kv")}
    before = plan
    for tensors in dict.fromkeys(m.tensors for _, m in plan.moves() if not m.accumulates):
        plan = _from_the_first(plan, tensors, useful[TENSORS[tensors[0]].side], regular)
    return plan if plan is before else _fit_buffers(drop_unused(plan, regular))


def _from_the_first(plan: Plan, tensors: tuple[str, ...], useful: Marks, regular: bool) -> Plan:
    """Messages of ranks without use for their blocks are sent from where their way begins.

    The way of copies that are held from the start began before it, in the pass that left them;
    copies from several owners came by ways that are not known.
    """
    came = [brought(plan, held) for held in plan.start if held.tensors == tensors]
    left = [only_rows(move, move.src >= 0) for move in came]
    numbered = [(-1, move) for move in left]
    numbered += [(n, move) for n, move in plan.moves() if move.tensors == tensors]
    moves = [move for _, move in numbered]
    idle = [~useful.any(places(plan, tensors[0], m.src, m.blocks)) for m in moves]
    if regular:
        for number in {n for (n, _), rows in zip(numbered, idle, strict=True) if rows.any()}:
            chosen = [i for i, (n, _) in enumerate(numbered) if n == number]
            labels = exchanges(plan.ranks, [moves[i] for i in chosen])
            for i, label in zip(chosen, labels, strict=True):
                idle[i] &= label < 0
    relays = np.concatenate(idle)
    if not relays.any():
        return plan
    before = _brought_by(plan, tensors[0], moves)
    relays &= before >= 0
    if regular:
        relays = _from_there_on(relays, before, moves)
    src, dst = (np.concatenate([getattr(m, end) for m in moves]) for end in ("src", "dst"))
    first, now = src[_ends(before)], sum(map(len, left))
    source = np.where(relays, first, src)
    return _rerouted(plan, tensors, moves[len(left) :], source[now:], dst[now:])


def _brought_by(plan: Plan, tensor: str, moves: list[Move]) -> Index:
    """For each message: the one that brought just its blocks to its source, or -1."""
    count = np.concatenate([(m.blocks >= 0).sum(axis=1) for m in moves])
    came = np.zeros(cells(plan, tensor).size, np.int32)
    ends, nowhere = np.cumsum([0, *map(len, moves)]), cells(plan, tensor).nowhere
    spans = [np.arange(a, b) for a, b in pairwise(ends.tolist())]
    for move, numbers in zip(moves, spans, strict=True):
        _arrive(came, places(plan, tensor, move.dst, move.blocks), numbers, nowhere)
    brought = np.full(len(count), -1, np.intp)
    for move, numbers in zip(moves, spans, strict=True):
        entries = places(plan, tensor, move.src, move.blocks)
        brought[numbers] = _brought(came, entries, move.blocks, count, numbers)
    return brought


def _users(plan: Plan, side: SideName) -> Marks:
    """Returns the ranks that attend with each block of a side, or own it."""
    tensor = next(t for t in INPUTS[plan.pass_] if TENSORS[t].side == side)
    marks = Marks(plan, tensor)
    marks.set(at_owner(plan, tensor), True)
    for _, attend in plan.attends():
        marks.set(places(plan, tensor, attend.rank, attended_blocks(attend, tensor)), True)
    return marks
