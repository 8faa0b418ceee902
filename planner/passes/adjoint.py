"""adjoint(plan)   derives a backward plan with the attends of a forward plan on the same ranks."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ringloom.planner.analysis.messages import reaches_owner
from ringloom.planner.analysis.tables import Table
from ringloom.planner.columns import has_duplicates
from ringloom.planner.errors import PlanError, as_tuple_of
from ringloom.planner.ir import QUERY_SIDE, TENSORS, InitialCopy, Move, Plan, Step
from ringloom.planner.partitions import Ints
from ringloom.planner.plans import one_plan

KEEPABLE = ("Q", "KV", "OUT")  # tensors that a forward pass may leave in place


def adjoint(plan: Plan, keep: Sequence[str] = ()) -> Plan:
    """Derives the backward plan of any forward plan.

    Move(Q) --> Move(Q DOUT STATS)     Move(OUT) --> Move(DQ)     Move(KV) --> Move(KV)

    Each DKV follows its KV from rank to rank, then goes from the last rank to its owner. If a rank
    forwards a copy to several ranks, DKV returns over the reversed routes. DKV leaves a rank one
    step after the last attend there, or one step after the last partial DKV arrives, if later.

    The backward plan does not send the tensors in `keep` again: the forward pass leaves copies in
    place. A kept OUT is on the rank that sends the finished result to its owner; that rank receives
    DOUT without STATS.
    """
    if one_plan(plan, "adjoint").pass_ != "forward":
        raise PlanError(f"adjoint takes a forward plan; {plan.name} is a {plan.pass_} plan")
    if any("Q" in copies.tensors for copies in plan.start):
        raise PlanError(f"adjoint of {plan.name}: DOUT and STATS cannot follow initial copies of Q")
    keep = as_tuple_of(str, keep, "keep")
    if unknown := [t for t in keep if t not in KEEPABLE]:
        raise PlanError(f"adjoint can keep {', '.join(KEEPABLE)}, not {unknown[0]}")
    result_copies, finished = _finished_away(plan) if "OUT" in keep else ([], None)
    returns = _returns(plan)
    copies = list(plan.start)
    steps = []
    for number in range(max(len(plan.steps), max(returns, default=-1) + 1)):
        step = plan.steps[number] if number < len(plan.steps) else Step()
        moves = list[Move]()
        for move in step.moves:
            if move.tensors[0] in keep and not move.accumulates:
                copies.append(InitialCopy(move.tensors, move.blocks, move.dst))
            if move.tensors == ("Q",):
                moves += _query_side(move, finished, "Q" in keep)
            elif move.accumulates:
                moves.append(Move(("DQ",), move.blocks, move.src, move.dst))
            elif move.tensors[0] not in keep:
                moves.append(move)
        steps.append(Step(step.attends, (*moves, *returns.get(number, ()))))
    buffers = tuple((t, n) for t, n in plan.buffers if t == "KV" and t not in keep)
    start = (*copies, *result_copies)
    return replace(plan, pass_="backward", start=start, buffers=buffers, steps=tuple(steps))


def _finished_away(plan: Plan) -> tuple[list[InitialCopy], Table]:
    """Returns initial copies of OUT on ranks that send finished results, and a table of them."""
    result_copies, finished = list[InitialCopy](), Table(plan, "OUT")
    for number, move in plan.moves():
        if move.tensors == ("OUT",) and (rows := reaches_owner(plan, number, move)).any():
            result_copies.append(InitialCopy(("OUT",), move.blocks[rows], move.src[rows]))
            finished[move.src[rows], move.blocks[rows]] = True
    return result_copies, finished


def _query_side(move: Move, finished: Table | None, has_queries: bool) -> list[Move]:
    """Returns messages of DOUT, with Q and STATS for ranks that do not have them."""
    rows = np.zeros(len(move), np.bool_)
    if finished is not None:
        rows = np.asarray((finished[move.dst, move.blocks] | (move.blocks < 0)).all(axis=1))
    inputs = QUERY_SIDE["backward"][has_queries:]
    without_stats = tuple(t for t in inputs if t != "STATS")
    return [
        Move(tensors, move.blocks[selection], move.src[selection], move.dst[selection])
        for tensors, selection in ((inputs, ~rows), (without_stats, rows))
    ]


Returns = dict[int, list[Move]]  # step -> messages of DKV that leave in the step


def _returns(plan: Plan) -> Returns:
    """Returns the messages that send each DKV to its owner."""
    moves = [(n, move) for n, move in plan.moves() if TENSORS[move.tensors[0]].side == "kv"]
    ready = Table(plan, "DKV", np.int32)  # the step after the last change; 0: no change
    for number, attend in plan.attends():
        ready[attend.rank, attend.kv] = number + 1
    forwarded = _forwarded_copies(plan, moves)
    if forwarded is None:
        return _reverse_routes(moves, ready)
    return _follow_kv(plan, moves, ready, forwarded)


def _forwarded_copies(plan: Plan, moves: Sequence[tuple[int, Move]]) -> Table | None:
    """Returns the KV copies that ranks forward; None if a rank gets or forwards a copy twice."""
    received, forwarded, owners = Table(plan, "DKV"), Table(plan, "DKV"), plan.partition.kv.owners
    for _, move in moves:
        has_block, block_owner = move.blocks >= 0, owners[move.blocks]
        owner = block_owner.max(axis=1, where=has_block, initial=-1)
        is_relay = move.src != owner
        has_several_owners = (has_block & (block_owner != owner[:, None])).any()
        is_repeated = _mark(received, move.dst, move.blocks)
        is_forked = _mark(forwarded, move.src[is_relay], move.blocks[is_relay])
        goes_back = (move.dst == owner).any()
        if plan.start or has_several_owners or is_repeated or is_forked or goes_back:
            return None
    return forwarded


def _mark(table: Table, rank: Ints, blocks: Ints) -> bool:
    """Marks blocks on ranks; returns True if a block was marked before."""
    entries = table.of(rank, blocks)[blocks >= 0]
    is_repeated = bool(table[entries].any()) or has_duplicates(entries)
    table[entries] = True
    return is_repeated


def _follow_kv(
    plan: Plan, moves: Sequence[tuple[int, Move]], ready: Table, forwarded: Table
) -> Returns:
    """Returns messages of DKV that follow KV, then go from the last rank to the owner."""
    returns, owners = defaultdict[int, list[Move]](list), plan.partition.kv.owners
    for _, move in moves:
        relays = move.select(move.src != owners[move.blocks.max(axis=1)])
        _add_returns(returns, ready, relays.blocks, relays.src, relays.dst)
    for _, move in moves:
        last_copies = np.where(forwarded[move.dst, move.blocks], -1, move.blocks)
        _add_returns(returns, ready, last_copies, move.dst, owners[move.blocks.max(axis=1)])
    return dict(returns)


def _reverse_routes(moves: Sequence[tuple[int, Move]], ready: Table) -> Returns:
    """Returns messages of DKV over the reversed routes of KV."""
    returns = defaultdict[int, list[Move]](list)
    for _, move in reversed(moves):
        _add_returns(returns, ready, move.blocks, move.dst, move.src)
    return dict(returns)


def _add_returns(returns: Returns, ready: Table, blocks: Ints, src: Ints, dst: Ints) -> None:
    """Adds messages of partial DKV, each in the step in which its blocks are ready."""
    leave_step = ready[src, blocks].max(axis=1, initial=0)
    arrived = ((leave_step + 1) * (leave_step > 0))[:, None]
    next_leave = np.where(blocks < 0, 0, arrived)
    np.maximum.at(ready.flat, ready.of(dst, blocks), next_leave)  # arrivals in several steps
    for step in np.unique(leave_step[leave_step > 0]).tolist():
        rows = leave_step == step
        returns[step].append(Move(("DKV",), blocks[rows], src[rows], dst[rows]))
