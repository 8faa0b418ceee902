"""adjoint(plan)   forward plan  -->  backward plan with the same attends on the same ranks."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.analysis.messages import reaches_owner
from planner.analysis.tables import Table
from planner.errors import PlanError, each
from planner.ir import QUERY_SIDE, TENSORS, Held, Move, Plan, Step
from planner.plans import one_plan

KEPT = ("Q", "KV", "OUT")  # what a forward pass may leave in place


def adjoint(plan: Plan, keep: Sequence[str] = ()) -> Plan:
    """Derive the backward plan of any forward plan.

    Move(Q) --> Move(Q DOUT STATS)     Move(OUT) --> Move(DQ)     Move(KV) --> Move(KV)
    and each DKV goes back over the reversed route of its KV, a step after the rank's last attend
    of it or the last share that came back to the rank, whichever is later.

    Tensors named in `keep` are not sent again: the forward pass leaves its copies in place. OUT is
    left where it is finished before it goes to its owner; DOUT then goes there without STATS.
    """
    if one_plan(plan, "adjoint").pass_ != "forward":
        raise PlanError(f"adjoint takes a forward plan; {plan.name} is a {plan.pass_} plan")
    if any("Q" in held.tensors for held in plan.start):
        raise PlanError(f"adjoint of {plan.name}: DOUT and STATS cannot follow a held Q")
    keep = each(str, keep, "keep")
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
                held.append(Held(move.tensors, move.blocks, move.dst))
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


def _finished_away(plan: Plan) -> tuple[list[Held], Table]:
    """OUT where whole messages of finished results leave from, and which places those are."""
    left, made = list[Held](), Table(plan, "OUT")
    for number, move in plan.moves():
        if move.tensors == ("OUT",) and (rows := reaches_owner(plan, number, move)).any():
            left.append(Held(("OUT",), move.blocks[rows], move.src[rows]))
            made[move.src[rows], move.blocks[rows]] = True
    return left, made


def _query_side(move: Move, made: Table | None, kept: bool) -> list[Move]:
    """The messages that bring DOUT, STATS where they are not made there, and Q where it is not."""
    rows = np.zeros(len(move), np.bool_)
    if made is not None:
        rows = np.asarray((made[move.dst, move.blocks] | (move.blocks < 0)).all(axis=1))
    inputs = QUERY_SIDE["backward"][kept:]
    return [
        Move(tensors, move.blocks[which], move.src[which], move.dst[which])
        for tensors, which in ((inputs, ~rows), (tuple(t for t in inputs if t != "STATS"), rows))
    ]


def _returns(plan: Plan) -> dict[int, list[Move]]:
    """Step -> messages of DKV that leave in it, whole, over the reversed routes of KV."""
    ready = Table(plan, "DKV", np.int32)  # the step after the last change of a share, 0 for none
    for number, attend in plan.attends():
        ready[attend.rank, attend.kv] = number + 1
    back = defaultdict[int, list[Move]](list)
    for number in reversed(range(len(plan.steps))):
        for move in plan.steps[number].moves:
            if TENSORS[move.tensors[0]].side == "q":
                continue
            leaves = ready[move.dst, move.blocks].max(axis=1)
            shares = ready.of(move.src, move.blocks)
            ready[shares] = np.maximum(ready[shares], ((leaves + 1) * (leaves > 0))[:, None])
            for step in np.unique(leaves[leaves > 0]).tolist():
                now = leaves == step
                back[step].append(Move(("DKV",), move.blocks[now], move.dst[now], move.src[now]))
    return dict(back)
