"""adjoint(plan)   forward plan  -->  backward plan with the same attends on the same ranks."""

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

KEPT = ("Q", "KV", "OUT")  # tensors that a forward pass may leave in place


def adjoint(plan: Plan, keep: Sequence[str] = ()) -> Plan:
    """Derive the backward plan of any forward plan.

    Move(Q) --> Move(Q DOUT STATS)     Move(OUT) --> Move(DQ)     Move(KV) --> Move(KV)
    Each DKV follows its KV from rank to rank, and goes from the last rank to its owner; if a rank
    forwards a copy to several ranks, DKV returns over the reversed routes. It leaves one step after
    the rank's last attend of it, or after the last share that the rank received, if that is later.

    Tensors named in `keep` are not sent again: the forward pass leaves its copies in place. OUT
    stays where it is finished before it goes to its owner; DOUT is then sent there without STATS.
    """
    if one_plan(plan, "adjoint").pass_ != "forward":
        raise PlanError(f"adjoint takes a forward plan; {plan.name} is a {plan.pass_} plan")
    if any("Q" in held.tensors for held in plan.start):
        raise PlanError(f"adjoint of {plan.name}: DOUT and STATS cannot follow initial copies of Q")
    keep = as_tuple_of(str, keep, "keep")
    if unknown := [t for t in keep if t not in KEPT]:
        raise PlanError(f"adjoint can keep {', '.join(KEPT)}, not {unknown[0]}")
    left, made = _finished_away(plan) if "OUT" in keep else ([], None)
    returns = _returns(plan)
    held = list(plan.start)
    steps = []
    for number in range(max(len(plan.steps), max(returns, default=-1) + 1)):
        step = plan.steps[number] if number < len(plan.steps) else Step()
        moves = list[Move]()
        for move in step.moves:
            if move.tensors[0] in keep and not move.accumulates:
                held.append(InitialCopy(move.tensors, move.blocks, move.dst))
            if move.tensors == ("Q",):
                moves += _query_side(move, made, "Q" in keep)
            elif move.accumulates:
                moves.append(Move(("DQ",), move.blocks, move.src, move.dst))
            elif move.tensors[0] not in keep:
                moves.append(move)
        steps.append(Step(step.attends, (*moves, *returns.get(number, ()))))
    buffers = tuple((t, n) for t, n in plan.buffers if t == "KV" and t not in keep)
    start = (*held, *left)
    return replace(plan, pass_="backward", start=start, buffers=buffers, steps=tuple(steps))


def _finished_away(plan: Plan) -> tuple[list[InitialCopy], Table]:
    """Returns initial copies of OUT at the sources of messages of finished results; marks them."""
    left, made = list[InitialCopy](), Table(plan, "OUT")
    for number, move in plan.moves():
        if move.tensors == ("OUT",) and (rows := reaches_owner(plan, number, move)).any():
            left.append(InitialCopy(("OUT",), move.blocks[rows], move.src[rows]))
            made[move.src[rows], move.blocks[rows]] = True
    return left, made


def _query_side(move: Move, made: Table | None, kept: bool) -> list[Move]:
    """Returns the messages that bring DOUT, and STATS and Q where they are not there already."""
    rows = np.zeros(len(move), np.bool_)
    if made is not None:
        rows = np.asarray((made[move.dst, move.blocks] | (move.blocks < 0)).all(axis=1))
    inputs = QUERY_SIDE["backward"][kept:]
    return [
        Move(tensors, move.blocks[which], move.src[which], move.dst[which])
        for tensors, which in ((inputs, ~rows), (tuple(t for t in inputs if t != "STATS"), rows))
    ]


Back = dict[int, list[Move]]  # step -> messages of DKV that leave in it


def _returns(plan: Plan) -> Back:
    """Returns the messages that bring each DKV to its owner."""
    moves = [(n, move) for n, move in plan.moves() if TENSORS[move.tensors[0]].side == "kv"]
    ready = Table(plan, "DKV", np.int32)  # the step after the last change of a share, 0 for none
    for number, attend in plan.attends():
        ready[attend.rank, attend.kv] = number + 1
    onward = _forwarded_copies(plan, moves)
    return (
        _reverse_routes(moves, ready) if onward is None else _follow_kv(plan, moves, ready, onward)
    )


def _forwarded_copies(plan: Plan, moves: Sequence[tuple[int, Move]]) -> Table | None:
    """Returns the KV copies that ranks forward; None if any is received or forwarded twice."""
    received, sent, owners = Table(plan, "DKV"), Table(plan, "DKV"), plan.partition.kv.owners
    for _, move in moves:
        present, block_owner = move.blocks >= 0, owners[move.blocks]
        owner = block_owner.max(axis=1, where=present, initial=-1)
        away = move.src != owner
        several = (present & (block_owner != owner[:, None])).any()
        repeats = _mark(received, move.dst, move.blocks)
        forks = _mark(sent, move.src[away], move.blocks[away])
        if plan.start or several or repeats or forks or (move.dst == owner).any():
            return None
    return sent


def _mark(table: Table, rank: Ints, blocks: Ints) -> bool:
    """Marks the entries of blocks on ranks; returns True if one was marked before."""
    entries = table.of(rank, blocks)[blocks >= 0]
    repeats = bool(table[entries].any()) or has_duplicates(entries)
    table[entries] = True
    return repeats


def _follow_kv(plan: Plan, moves: Sequence[tuple[int, Move]], ready: Table, onward: Table) -> Back:
    """Sends DKV along with its KV, and from the last rank to its owner."""
    back, owners = defaultdict[int, list[Move]](list), plan.partition.kv.owners
    for _, move in moves:
        away = move.src != owners[move.blocks.max(axis=1)]
        part = move.only(away)
        _add_returns(back, ready, part.blocks, part.src, part.dst)
    for _, move in moves:
        ends = np.where(onward[move.dst, move.blocks], -1, move.blocks)
        _add_returns(back, ready, ends, move.dst, owners[move.blocks.max(axis=1)])
    return dict(back)


def _reverse_routes(moves: Sequence[tuple[int, Move]], ready: Table) -> Back:
    """Sends DKV back over the reversed routes of KV."""
    back = defaultdict[int, list[Move]](list)
    for _, move in reversed(moves):
        _add_returns(back, ready, move.blocks, move.dst, move.src)
    return dict(back)


def _add_returns(back: Back, ready: Table, blocks: Ints, src: Ints, dst: Ints) -> None:
    """Adds the messages of these shares, each in the step in which it is ready."""
    leaves = ready[src, blocks].max(axis=1, initial=0)
    arrived = ((leaves + 1) * (leaves > 0))[:, None]
    shares, latest = ready.of(dst, blocks), np.where(blocks < 0, 0, arrived)
    np.maximum.at(ready.flat, shares, latest)  # a rank may receive several, in different steps
    for step in np.unique(leaves[leaves > 0]).tolist():
        now = leaves == step
        back[step].append(Move(("DKV",), blocks[now], src[now], dst[now]))
