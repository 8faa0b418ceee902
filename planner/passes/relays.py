"""shortcut_sums(plan), shortcut_copies(plan)   remove relay hops through ranks that do not use
the blocks."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

import numpy as np

from ringloom.planner.analysis.tables import Bits, Table, attended_blocks
from ringloom.planner.ir import ACCUMULATORS, Index, Move, Plan, Step
from ringloom.planner.partitions import Ints
from ringloom.planner.passes.buffers import fit_buffers
from ringloom.planner.passes.exchanges import exchanges
from ringloom.planner.passes.pieces import bringing_moves
from ringloom.planner.passes.trim import drop_empty, drop_unused, without_empty_transfers
from ringloom.planner.plans import one_plan

Moves = list[tuple[int, Move]]  # moves of the same tensors, each with its step
NOTHING, MIXED = 0, -1  # what a rank received; otherwise the number, from 1, of one message


def shortcut_sums(plan: Plan, regular: bool = True) -> Plan:
    """Send accumulators past the ranks that add nothing to them.

    Move(b, y, x, step s), Move(b, x, w, step t), ..., Move(b, v, z, step u)
    -->  Move(b, y, z, step s)        where z is the end of the route of the blocks b, and x adds
                                      nothing to them; no move if y is z

    Whatever leaves z later includes what arrived early; the plan is unchanged if that would not
    reach its owner. `regular`: once a rank is skipped, all later messages of that route go to its
    end too, so that one rule applies to every rank.
    """
    for tensor in ACCUMULATORS[one_plan(plan, "shortcut_sums").pass_]:
        plan = _shorten_sums(plan, tensor, regular)
    return plan


def _shorten_sums(plan: Plan, tensor: str, regular: bool) -> Plan:
    moves = [(number, move) for number, move in plan.moves() if move.tensors == (tensor,)]
    if not moves:
        return plan
    before, relays = _trace_routes(plan, moves, _idle_sources(plan, tensor))
    if not relays.any():
        return plan
    src, dst = _from_to(moves)
    onward, following = np.flatnonzero(before >= 0), np.full(len(before), -1, np.intp)
    following[before[onward]] = onward
    straight = _with_later(relays, before, moves) if regular else relays.copy()
    straight[before[onward]] |= relays[onward]
    target = np.where(straight, dst[_last_messages(following)], dst)
    target[relays] = src[relays]  # rows with src = dst are dropped
    made, owned = without_empty_transfers(_reroute(plan, moves, src, target))
    return fit_buffers(made) if owned else plan


def _idle_sources(plan: Plan, tensor: str) -> Bits:
    """Marks messages of a sum whose source added nothing to the blocks since they last left."""
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


def _trace_routes(plan: Plan, moves: Moves, idle: Bits) -> tuple[Index, Bits]:
    """Returns, per message, the one that brought exactly its blocks, or -1; and marks relays.

    Sums leave their source. `idle` marks messages whose source does not use the blocks.
    """
    if not idle.any():  # tracing routes takes four times as long
        return np.zeros(0, np.intp), idle
    sums, came = moves[0][1].accumulates, Table(plan, moves[0][1].tensors[0], np.int32)
    count = np.concatenate([(move.blocks >= 0).sum(axis=1) for _, move in moves])
    before = np.full(len(count), -1, np.intp)
    numbered = zip(moves, _numbers(moves), strict=True)
    for _, group in groupby(numbered, key=lambda item: item[0][0]):
        sent = [(m, numbers, came.of(m.src, m.blocks)) for (_, m), numbers in group]
        for move, numbers, entries in sent:
            before[numbers] = _bringers(came, entries, move.blocks, count, numbers)
        for _, _, entries in sent if sums else ():
            came[entries] = NOTHING
        for move, numbers, _ in sent:
            _record_arrivals(came, came.of(move.dst, move.blocks), numbers)
    return before, idle & (before >= 0)


def _numbers(moves: Moves) -> list[Index]:
    """Returns the numbers of the messages of each move, counted over all moves."""
    ends = np.cumsum([len(move) for _, move in moves])
    return np.split(np.arange(ends[-1]), ends[:-1])


def _from_to(moves: Moves) -> tuple[Index, Index]:
    """Returns the source and the destination of each message."""
    src, dst = (np.concatenate([getattr(m, end) for _, m in moves]) for end in ("src", "dst"))
    return src, dst


def _bringers(came: Table, entries: Index, blocks: Ints, count: Index, numbers: Index) -> Index:
    """Returns, per message, the one that brought exactly its blocks, or -1."""
    before = came[entries]
    one = before.max(axis=1)
    same = (one > NOTHING) & ((before == one[:, None]) | (blocks < 0)).all(axis=1)
    same &= count[one - 1] == count[numbers]
    return np.where(same, one.astype(np.intp) - 1, -1)


def _record_arrivals(came: Table, entries: Index, numbers: Index) -> None:
    """Records what each destination now holds: one arrival, or a mixture."""
    arrivals = numbers[:, None] + 1
    mixed = came[entries] != NOTHING
    came[entries] = arrivals
    mixed |= came[entries] != arrivals  # two arrivals at once
    came[entries.T[mixed.T]] = MIXED


def _last_messages(following: Index) -> Index:
    """Returns the last message of each message's route."""
    last = np.where(following < 0, np.arange(len(following)), following)
    while (last != (further := last[last])).any():
        last = further
    return last


def _with_later(marked: Bits, before: Index, moves: Moves) -> Bits:
    """Marks the given messages and all later ones on their routes; `before`: the previous one."""
    later = marked.copy()
    for numbers in _numbers(moves):
        later[numbers] |= (before[numbers] >= 0) & later[before[numbers]]
    return later


def _reroute(plan: Plan, moves: Moves, source: Index, target: Index) -> Plan:
    """Returns the plan with new sources and targets for the messages of some tensors."""
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


def keep_local(plan: Plan) -> Plan:
    """Keep partial sums on the rank that owns their blocks.

    Move(b, x, y)  -->  nothing        if x owns the blocks of the sums b, but b is not all it owns

    Full and causal masks are left alone: there, schedules stay as built.
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


def shortcut_copies(plan: Plan, regular: bool = True) -> Plan:
    """Send inputs past the ranks that would only forward them.

    Move(b, y, x, step s), Move(b, x, z, step t)  -->  Move(b, y, z, step t)

    if x attends nothing with the blocks b; y is the start of their route, usually their owner.
    `regular`: messages of a complete exchange keep their route, and once a rank is skipped, all
    later messages of that route come from y too.
    """
    before = one_plan(plan, "shortcut_copies")
    for tensors in dict.fromkeys(m.tensors for _, m in plan.moves() if not m.accumulates):
        plan = _shorten_inputs(plan, tensors, regular)
    return plan if plan is before else fit_buffers(drop_unused(plan, regular))


def _shorten_inputs(plan: Plan, tensors: tuple[str, ...], regular: bool) -> Plan:
    """Sends messages of ranks that do not use their blocks from the start of their route.

    The routes of initial copies began before step 0, in the pass that left them; those of copies
    from several owners are unknown.
    """
    came = [bringing_moves(plan, held) for held in plan.start if held.tensors == tensors]
    moves: Moves = [(-1, move.only(move.src >= 0)) for move in came]
    moves += [(number, move) for number, move in plan.moves() if move.tensors == tensors]
    useful = _users(plan, tensors[0])
    idle = [~useful[move.src, move.blocks].any(axis=1) for _, move in moves]
    before, relays = _trace_routes(plan, moves, np.concatenate(idle))
    if regular and relays.any():
        relays &= _outside_exchanges(plan, moves)
    if not relays.any():
        return plan
    if regular:
        relays = _with_later(relays, before, moves)
    src, dst = _from_to(moves)
    return _reroute(plan, moves, np.where(relays, src[_last_messages(before)], src), dst)


def _outside_exchanges(plan: Plan, moves: Moves) -> Bits:
    """Marks the messages that belong to no complete exchange of their step."""
    steps = (group for _, group in groupby(moves, key=lambda item: item[0]))
    labels = [exchanges(plan.ranks, [move for _, move in group]) for group in steps]
    return np.asarray(np.concatenate(labels) < 0)


def _users(plan: Plan, tensor: str) -> Table:
    """Marks the ranks that attend with each block of an input, or own it."""
    users = Table(plan, tensor)
    users[users.cells.owned] = True
    for _, attend in plan.attends():
        users[attend.rank, attended_blocks(attend, tensor)] = True
    return users
