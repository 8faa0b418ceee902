"""shortcut_sums(plan)     removes relay hops of partial sums through ranks that add nothing
shortcut_copies(plan)   removes relay hops of inputs through ranks that do not attend them
keep_local(plan)        keeps partial sums on the owners of their blocks
"""

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

StepMoves = list[tuple[int, Move]]  # moves of the same tensors, with their steps
NOTHING, MIXED = 0, -1  # a rank received no message, or several; else a message number from 1


def shortcut_sums(plan: Plan, regular: bool = True) -> Plan:
    """Lets accumulators skip the ranks that add nothing to them.

    Move(b, y, x, step s), Move(b, x, w, step t), ..., Move(b, v, z, step u)
    -->  Move(b, y, z, step s)        if x adds nothing to the blocks b, and their route ends at z;
                                      no move if y is z

    Later transfers from z include the early arrivals. If these would not reach their owners,
    returns the plan unchanged. `regular`: after a skipped rank, all later messages of the route go
    to its end, so that one rule applies to every rank.
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
    continued, next_message = np.flatnonzero(before >= 0), np.full(len(before), -1, np.intp)
    next_message[before[continued]] = continued
    to_end = _with_later(relays, before, moves) if regular else relays.copy()
    to_end[before[continued]] |= relays[continued]
    target = np.where(to_end, dst[_last_messages(next_message)], dst)
    target[relays] = src[relays]  # `Move` drops rows with src = dst
    rerouted, all_owned = without_empty_transfers(_reroute(plan, moves, src, target))
    return fit_buffers(rerouted) if all_owned else plan


def _idle_sources(plan: Plan, tensor: str) -> Bits:
    """Marks messages of a sum whose source added nothing since its last message of the blocks."""
    added, idle = Table(plan, tensor), list[Bits]()
    for step in plan.steps:
        moves = [move for move in step.moves if move.tensors == (tensor,)]
        entries_of_moves = [added.of(move.src, move.blocks) for move in moves]
        idle += [np.asarray(~added[entries].any(axis=1)) for entries in entries_of_moves]
        for entries in entries_of_moves:
            added[entries] = False
        for attend in step.attends:
            added[attend.rank, attended_blocks(attend, tensor)] = True
    return np.concatenate(idle)


def _trace_routes(plan: Plan, moves: StepMoves, idle: Bits) -> tuple[Index, Bits]:
    """Returns, for each message, the previous message of its route, or -1; and marks relays.

    The previous message brought exactly the same blocks to the source. `idle` marks messages whose
    source does not use the blocks. Sums do not stay at their source.
    """
    if not idle.any():  # faster: tracing routes takes four times as long
        return np.zeros(0, np.intp), idle
    sums, arrivals = moves[0][1].accumulates, Table(plan, moves[0][1].tensors[0], np.int32)
    count = np.concatenate([(move.blocks >= 0).sum(axis=1) for _, move in moves])
    before = np.full(len(count), -1, np.intp)
    numbered = zip(moves, _numbers(moves), strict=True)
    for _, group in groupby(numbered, key=lambda item: item[0][0]):
        sends = [(m, numbers, arrivals.of(m.src, m.blocks)) for (_, m), numbers in group]
        for move, numbers, entries in sends:
            before[numbers] = _bringers(arrivals, entries, move.blocks, count, numbers)
        for _, _, entries in sends if sums else ():
            arrivals[entries] = NOTHING
        for move, numbers, _ in sends:
            _record_arrivals(arrivals, arrivals.of(move.dst, move.blocks), numbers)
    return before, idle & (before >= 0)


def _numbers(moves: StepMoves) -> list[Index]:
    """Numbers the messages of all moves; returns the numbers of each move."""
    ends = np.cumsum([len(move) for _, move in moves])
    return np.split(np.arange(ends[-1]), ends[:-1])


def _from_to(moves: StepMoves) -> tuple[Index, Index]:
    """Returns the source and the destination of each message."""
    src, dst = (np.concatenate([getattr(m, end) for _, m in moves]) for end in ("src", "dst"))
    return src, dst


def _bringers(arrivals: Table, entries: Index, blocks: Ints, count: Index, numbers: Index) -> Index:
    """Returns, for each message, the message that brought exactly its blocks, or -1."""
    before = arrivals[entries]
    largest = before.max(axis=1)
    is_brought = (largest > NOTHING) & ((before == largest[:, None]) | (blocks < 0)).all(axis=1)
    is_brought &= count[largest - 1] == count[numbers]
    return np.where(is_brought, largest.astype(np.intp) - 1, -1)


def _record_arrivals(arrivals: Table, entries: Index, numbers: Index) -> None:
    """Records at each destination the number of the arrival, or MIXED for several arrivals."""
    new_arrivals = numbers[:, None] + 1
    is_mixed = arrivals[entries] != NOTHING
    arrivals[entries] = new_arrivals
    is_mixed |= arrivals[entries] != new_arrivals  # two arrivals in one step
    arrivals[entries.T[is_mixed.T]] = MIXED


def _last_messages(next_message: Index) -> Index:
    """Returns the last message of each message's route."""
    last = np.where(next_message < 0, np.arange(len(next_message)), next_message)
    while (last != (following := last[last])).any():
        last = following
    return last


def _with_later(marked: Bits, before: Index, moves: StepMoves) -> Bits:
    """Marks the given messages and all later messages on their routes.

    before: the previous message on the route of each message, or -1.
    """
    marks = marked.copy()
    for numbers in _numbers(moves):
        marks[numbers] |= (before[numbers] >= 0) & marks[before[numbers]]
    return marks


def _reroute(plan: Plan, moves: StepMoves, source: Index, target: Index) -> Plan:
    """Returns the plan with new sources and targets for the messages of the given moves."""
    routes = ((source[numbers], target[numbers]) for numbers in _numbers(moves))
    routes = (route for route, (number, _) in zip([*routes], moves, strict=True) if number >= 0)
    tensors = moves[0][1].tensors

    def rewrite(step: Step) -> Iterator[Move]:
        for move in step.moves:
            if move.tensors != tensors:
                yield move
                continue
            src, dst = next(routes)
            is_unchanged = np.array_equal(src, move.src) and np.array_equal(dst, move.dst)
            yield move if is_unchanged else Move(tensors, move.blocks, src, dst)

    steps = [Step(s.attends, tuple(rewrite(s))) for s in plan.steps]
    return replace(plan, steps=tuple(steps))


def keep_local(plan: Plan) -> Plan:
    """Keeps partial sums on the rank that owns their blocks.

    Move(b, x, y)  -->  nothing        if x owns the blocks of the sums b, and also other blocks

    Changes nothing under full and causal masks, so that schedules stay as built.
    """
    if not plan.workload.mask.fixed_length:
        return plan

    def keep_remote(move: Move) -> Move:
        if not move.accumulates:
            return move
        owners = plan.side(move.tensors[0]).owners
        is_owned, has_block = owners[move.blocks] == move.src[:, None], move.blocks >= 0
        is_local = (is_owned | ~has_block).all(axis=1) & (
            has_block.sum(axis=1) < np.bincount(owners, minlength=plan.ranks)[move.src]
        )
        return move.select(~is_local)

    steps = (Step(s.attends, tuple(map(keep_remote, s.moves))) for s in plan.steps)
    return drop_empty(replace(plan, steps=tuple(steps)))


def shortcut_copies(plan: Plan, regular: bool = True) -> Plan:
    """Lets inputs skip the ranks that would only forward them.

    Move(b, y, x, step s), Move(b, x, z, step t)  -->  Move(b, y, z, step t)

    Applies if x attends nothing with the blocks b, whose route starts at y, usually their owner.
    `regular`: messages of a complete exchange keep their route, and after a skipped rank, all later
    messages of the route come from y.
    """
    before = one_plan(plan, "shortcut_copies")
    for tensors in dict.fromkeys(m.tensors for _, m in plan.moves() if not m.accumulates):
        plan = _shorten_inputs(plan, tensors, regular)
    return plan if plan is before else fit_buffers(drop_unused(plan, regular))


def _shorten_inputs(plan: Plan, tensors: tuple[str, ...], regular: bool) -> Plan:
    """Changes the source of messages from ranks without use for them to the start of the route.

    Routes of initial copies begin before step 0, at their owner; routes of copies from several
    owners are unknown.
    """
    messages = [bringing_moves(plan, copies) for copies in plan.start if copies.tensors == tensors]
    moves: StepMoves = [(-1, move.select(move.src >= 0)) for move in messages]
    moves += [(number, move) for number, move in plan.moves() if move.tensors == tensors]
    users = _users(plan, tensors[0])
    idle = [~users[move.src, move.blocks].any(axis=1) for _, move in moves]
    before, relays = _trace_routes(plan, moves, np.concatenate(idle))
    if regular and relays.any():
        relays &= _outside_exchanges(plan, moves)
    if not relays.any():
        return plan
    if regular:
        relays = _with_later(relays, before, moves)
    src, dst = _from_to(moves)
    return _reroute(plan, moves, np.where(relays, src[_last_messages(before)], src), dst)


def _outside_exchanges(plan: Plan, moves: StepMoves) -> Bits:
    """Marks the messages outside complete exchanges."""
    steps = (group for _, group in groupby(moves, key=lambda item: item[0]))
    labels = [exchanges(plan.ranks, [move for _, move in group]) for group in steps]
    return np.asarray(np.concatenate(labels) < 0)


def _users(plan: Plan, tensor: str) -> Table:
    """Marks, for each block of an input, the ranks that attend or own the block."""
    users = Table(plan, tensor)
    users[users.cells.owned] = True
    for _, attend in plan.attends():
        users[attend.rank, attended_blocks(attend, tensor)] = True
    return users
