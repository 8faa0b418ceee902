"""homeward(plan), direct(plan)   remove relay hops through ranks that do not use the blocks."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

import numpy as np

from ringloom.planner.analysis.tables import Bits, Table, attended_blocks
from ringloom.planner.ir import ACCUMULATORS, Index, Move, Plan, Step
from ringloom.planner.partitions import Ints
from ringloom.planner.passes.buffers import fit_buffers
from ringloom.planner.passes.exchanges import exchanges
from ringloom.planner.passes.pieces import brought
from ringloom.planner.passes.trim import drop_empty, drop_unused, filled
from ringloom.planner.plans import one_plan

Moves = list[tuple[int, Move]]  # of some tensors, each with its step
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
    for tensor in ACCUMULATORS[one_plan(plan, "homeward").pass_]:
        plan = _shortened(plan, tensor, regular)
    return plan


def _shortened(plan: Plan, tensor: str, regular: bool) -> Plan:
    moves = [(number, move) for number, move in plan.moves() if move.tensors == (tensor,)]
    if not moves:
        return plan
    before, relays = _ways(plan, moves, _idle(plan, tensor))
    if not relays.any():
        return plan
    src, dst = _from_to(moves)
    onward, following = np.flatnonzero(before >= 0), np.full(len(before), -1, np.intp)
    following[before[onward]] = onward
    straight = _from_there_on(relays, before, moves) if regular else relays.copy()
    straight[before[onward]] |= relays[onward]
    target = np.where(straight, dst[_ends(following)], dst)
    target[relays] = src[relays]  # such rows fall away
    made, owned = filled(_rerouted(plan, moves, src, target))
    return fit_buffers(made) if owned else plan


def _idle(plan: Plan, tensor: str) -> Bits:
    """The messages of a sum whose source added nothing to their blocks since the last ones left."""
    added, idle = Table(plan, tensor), list[Bits]()
    for step in plan.steps:
        moves = [move for move in step.moves if move.tensors == (tensor,)]
        sent = [added.of(move.src, move.blocks) for move in moves]
        idle += [np.asarray(~added[entries].any(axis=1)) for entries in sent]
        for entries in sent:
            added[entries] = False
        for attend in step.attends:
            added[attend.rank, attended_blocks(attend, tensor)] = True
    return np.concatenate(idle)


def _ways(plan: Plan, moves: Moves, idle: Bits) -> tuple[Index, Bits]:
    """For each message: the one that brought just its blocks, or -1; and if it is only passed on.

    Sums leave. `idle` says which sources have no use for any of the blocks.
    """
    if not idle.any():  # to trace the ways as well takes four times as long
        return np.zeros(0, np.intp), idle
    sums, came = moves[0][1].accumulates, Table(plan, moves[0][1].tensors[0], np.int32)
    count = np.concatenate([(move.blocks >= 0).sum(axis=1) for _, move in moves])
    before = np.full(len(count), -1, np.intp)
    numbered = zip(moves, _numbers(moves), strict=True)
    for _, group in groupby(numbered, key=lambda item: item[0][0]):
        sent = [(m, numbers, came.of(m.src, m.blocks)) for (_, m), numbers in group]
        for move, numbers, entries in sent:
            before[numbers] = _brought(came, entries, move.blocks, count, numbers)
        for _, _, entries in sent if sums else ():
            came[entries] = NOTHING
        for move, numbers, _ in sent:
            _arrive(came, came.of(move.dst, move.blocks), numbers)
    return before, idle & (before >= 0)


def _numbers(moves: Moves) -> list[Index]:
    """The numbers of the messages of each move, counted through all of them."""
    ends = np.cumsum([len(move) for _, move in moves])
    return np.split(np.arange(ends[-1]), ends[:-1])


def _from_to(moves: Moves) -> tuple[Index, Index]:
    """The source and the destination of each message."""
    src, dst = (np.concatenate([getattr(m, end) for _, m in moves]) for end in ("src", "dst"))
    return src, dst


def _brought(came: Table, entries: Index, blocks: Ints, count: Index, numbers: Index) -> Index:
    """For each of these messages: the one that brought all of its blocks and no other, or -1."""
    before = came[entries]
    one = before.max(axis=1)
    same = (one > NOTHING) & ((before == one[:, None]) | (blocks < 0)).all(axis=1)
    same &= count[one - 1] == count[numbers]
    return np.where(same, one.astype(np.intp) - 1, -1)


def _arrive(came: Table, entries: Index, numbers: Index) -> None:
    """Note what lies at each destination now: one arrival, or a mixture."""
    arrivals = numbers[:, None] + 1
    mixed = came[entries] != NOTHING
    came[entries] = arrivals
    mixed |= came[entries] != arrivals  # two at once
    came[entries.T[mixed.T]] = MIXED


def _ends(following: Index) -> Index:
    """The last message of the way that each one is on."""
    last = np.where(following < 0, np.arange(len(following)), following)
    while (last != (further := last[last])).any():
        last = further
    return last


def _from_there_on(marked: Bits, before: Index, moves: Moves) -> Bits:
    """The marked messages and all that come later on their ways; `before` is the one before."""
    later = marked.copy()
    for numbers in _numbers(moves):
        later[numbers] |= (before[numbers] >= 0) & later[before[numbers]]
    return later


def _rerouted(plan: Plan, moves: Moves, source: Index, target: Index) -> Plan:
    """The plan with another source and target for each message of its moves of some tensors."""
    ways = ((source[numbers], target[numbers]) for numbers in _numbers(moves))
    ways = (way for way, (number, _) in zip([*ways], moves, strict=True) if number >= 0)
    tensors = moves[0][1].tensors

    def rewrite(step: Step) -> Iterator[Move]:
        for move in step.moves:
            if move.tensors != tensors:
                yield move
                continue
            src, dst = next(ways)
            same = np.array_equal(src, move.src) and np.array_equal(dst, move.dst)
            yield move if same else Move(tensors, move.blocks, src, dst)

    steps = [Step(s.attends, tuple(rewrite(s))) for s in plan.steps]
    return replace(plan, steps=tuple(steps))


def stay(plan: Plan) -> Plan:
    """Sums for some of the blocks that a rank owns stay with it, as the others there do.

    Move(b, x, y)  -->  nothing        where b are sums of blocks that x owns, and not of all

    They set out under full and causal masks, where schedules are as they were built.
    """
    if not plan.workload.mask.fixed_length:
        return plan

    def left(move: Move) -> Move:
        if not move.accumulates:
            return move
        owners = plan.side(move.tensors[0]).owners
        here, sent = owners[move.blocks] == move.src[:, None], move.blocks >= 0
        own = (here | ~sent).all(axis=1) & (
            sent.sum(axis=1) < np.bincount(owners, minlength=plan.ranks)[move.src]
        )
        return move.only(~own)

    steps = (Step(s.attends, tuple(map(left, s.moves))) for s in plan.steps)
    return drop_empty(replace(plan, steps=tuple(steps)))


def direct(plan: Plan, regular: bool = True) -> Plan:
    """Inputs skip the ranks that would only pass them on.

    Move(b, y, x, step s), Move(b, x, z, step t)  -->  Move(b, y, z, step t)

    when x attends nothing with the blocks b; y is where their way begins, most often their owner.
    `regular`: messages of a complete exchange stay on their way, and once a rank is skipped, all
    later messages of that way come from y too.
    """
    before = one_plan(plan, "direct")
    for tensors in dict.fromkeys(m.tensors for _, m in plan.moves() if not m.accumulates):
        plan = _from_the_first(plan, tensors, regular)
    return plan if plan is before else fit_buffers(drop_unused(plan, regular))


def _from_the_first(plan: Plan, tensors: tuple[str, ...], regular: bool) -> Plan:
    """Messages of ranks without use for their blocks are sent from where their way begins.

    The way of copies that are held from the start began before it, in the pass that left them;
    copies from several owners came by ways that are not known.
    """
    came = [brought(plan, held) for held in plan.start if held.tensors == tensors]
    moves: Moves = [(-1, move.only(move.src >= 0)) for move in came]
    moves += [(number, move) for number, move in plan.moves() if move.tensors == tensors]
    useful = _users(plan, tensors[0])
    idle = [~useful[move.src, move.blocks].any(axis=1) for _, move in moves]
    before, relays = _ways(plan, moves, np.concatenate(idle))
    if regular and relays.any():
        relays &= _alone(plan, moves)
    if not relays.any():
        return plan
    if regular:
        relays = _from_there_on(relays, before, moves)
    src, dst = _from_to(moves)
    return _rerouted(plan, moves, np.where(relays, src[_ends(before)], src), dst)


def _alone(plan: Plan, moves: Moves) -> Bits:
    """The messages that belong to no complete exchange of their step."""
    steps = (group for _, group in groupby(moves, key=lambda item: item[0]))
    labels = [exchanges(plan.ranks, [move for _, move in group]) for group in steps]
    return np.asarray(np.concatenate(labels) < 0)


def _users(plan: Plan, tensor: str) -> Table:
    """Returns the ranks that attend with each block of an input, or own it."""
    users = Table(plan, tensor)
    users[users.cells.owned] = True
    for _, attend in plan.attends():
        users[attend.rank, attended_blocks(attend, tensor)] = True
    return users
