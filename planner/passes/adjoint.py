"""adjoint(plan)   forward plan  -->  backward plan with the same attends on the same ranks."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.analysis.marks import Marks, places
from planner.analysis.messages import reaches_owner
from planner.errors import PlanError
from planner.ir import QUERY_SIDE, TENSORS, Held, Move, Plan, Step

KEPT = ("Q", "KV", "OUT")  # what a forward pass may leave in place


def adjoint(plan: Plan, keep: Sequence[str] = ()) -> Plan:
    """Derive the backward plan of any forward plan.

    Move(Q) --> Move(Q DOUT STATS)     Move(OUT) --> Move(DQ)     Move(KV) --> Move(KV)
    and each DKV goes back over the reversed route of its KV, a step after the rank's last attend
    of it or the last share that came back to the rank, whichever is later.

    Tensors named in `keep` are not sent again: the forward pass leaves its copies in place. OUT is
    left where it is finished before it goes to its owner; DOUT then goes there without STATS.
    """
    if plan.pass_ != "forward":
        raise PlanError(f"adjoint takes a forward plan; {plan.name} is a {plan.pass_} plan")
    if any("Q" in held.tensors for held in plan.start):
        raise PlanError(f"adjoint of {plan.name}: DOUT and STATS cannot follow a held Q")
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
    backward = replace(
        plan, pass_="backward", start=(*held, *left), buffers=buffers, steps=tuple(steps)
    )
    return replace(backward, steps=tuple(filter(None, steps))) if keep else backward


def _finished_away(plan: Plan) -> tuple[list[Held], Marks]:
    """OUT where whole messages of finished results leave from, and which places those are."""
    left, made = list[Held](), Marks(plan, "OUT")
    for number, move in plan.moves():
        if move.tensors == ("OUT",) and (rows := reaches_owner(plan, number, move)).any():
            left.append(Held(("OUT",), move.blocks[rows], move.src[rows]))
            made.set(places(plan, "OUT", move.src[rows], move.blocks[rows]), True)
    return left, made


def _query_side(move: Move, made: Marks | None, kept: bool) -> list[Move]:
    """The messages that bring DOUT, STATS where they are not made there, and Q where it is not."""
    rows = np.zeros(len(move), np.bool_)
    if made is not None:
        entries = made.cells.of(move.dst, move.blocks)
        rows = np.asarray((made.bits[entries] | (move.blocks < 0)).all(axis=1))
    inputs = QUERY_SIDE["backward"][kept:]
    return [
        Move(tensors, move.blocks[which], move.src[which], move.dst[which])
        for tensors, which in ((inputs, ~rows), (tuple(t for t in inputs if t != "STATS"), rows))
        if which.any()
    ]


def _returns(plan: Plan) -> dict[int, list[Move]]:
    """Step -> messages of DKV that leave in it, whole, over the reversed routes of KV."""
    done = np.full((plan.ranks, len(plan.partition.kv) + 1), -1, np.int32)  # last change of a share
    for number, attend in plan.attends():
        done[attend.rank[:, None], attend.kv] = number
    done[:, -1] = -1  # what block -1 finds
    back = defaultdict[int, list[Move]](list)
    for number in reversed(range(len(plan.steps))):
        for move in plan.steps[number].moves:
            if TENSORS[move.tensors[0]].side == "q":
                continue
            leaves = done[move.dst[:, None], move.blocks].max(axis=1) + 1
            done[move.src[:, None], move.blocks] = np.maximum(
                done[move.src[:, None], move.blocks], np.where(leaves > 0, leaves, -1)[:, None]
            )
            done[:, -1] = -1
            for step in np.unique(leaves[leaves > 0]).tolist():
                now = leaves == step
                back[step].append(Move(("DKV",), move.blocks[now], move.dst[now], move.src[now]))
    return dict(back)
