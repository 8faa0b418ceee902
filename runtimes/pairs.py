"""Which plans a run takes: a forward plan, a (forward, backward) pair, or a backward plan alone.

passes       the plans that somebody gave, verified, by pass
completed    the pair that a program is emitted from
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from planner.errors import PlanError
from planner.ir import Attend, Held, Move, Pass, Plan, Step
from planner.passes.trim import trim
from planner.planning import Pair, backward_of
from planner.verify import ensure_verified


def passes(plan: Plan | Pair) -> dict[Pass, Plan]:
    """The plans in what `run` takes, by pass, verified; PlanError for a pair that is none."""
    if isinstance(plan, Plan):
        return {plan.pass_: ensure_verified(plan)}
    kinds = tuple(p.pass_ if isinstance(p, Plan) else type(p).__name__ for p in plan)
    if kinds != ("forward", "backward"):
        raise PlanError(f"a pair is a forward and a backward plan, not {kinds}")
    ahead, back = plan
    if ahead.workload != back.workload:
        raise PlanError(f"a pair has one workload, not {ahead.workload} and {back.workload}")
    ensure_verified((ahead, back))
    return {"forward": ahead, "backward": back}


def completed(plans: dict[Pass, Plan], gradients: bool) -> Plan | Pair:
    """The plan or the pair of a program; a missing pass is derived, or stands in for itself."""
    if not gradients:
        if "forward" not in plans:
            raise PlanError("a backward plan alone needs dout")
        return plans["forward"]
    if "forward" not in plans:
        back = fetched(plans["backward"])
        return gathered(back), back
    back = plans.get("backward") or backward_of(plans["forward"])
    return plans["forward"], back


def fetched(plan: Plan) -> Plan:
    """A backward plan that needs nothing of a forward pass: step 0 brings what it had before.

    Held Q, KV --> Move(Q), Move(KV)      Held OUT --> Move(STATS)
    """
    if not plan.start:
        return plan
    moves = tuple(move for held in plan.start for move in _bringing(plan, held))
    alone = replace(plan, start=(), buffers=(), steps=(Step((), moves), *plan.steps))
    return ensure_verified(alone)


def _bringing(plan: Plan, held: Held) -> Iterator[Move]:
    """Messages from the owners of held blocks, a column of blocks at a time."""
    tensors = tuple("STATS" if tensor == "OUT" else tensor for tensor in held.tensors)
    homes = plan.side(tensors[0]).homes
    for block in held.blocks.T:
        away = (block >= 0) & (homes[block] != held.rank)
        yield Move(tensors, block[away], homes[block[away]], held.rank[away])


def gathered(plan: Plan) -> Plan:
    """A forward plan of the same layout: every rank gets all keys, and attends to them."""
    q, kv = plan.side("Q"), plan.side("KV")
    away = [
        (block, home, rank)
        for block, home in enumerate(kv.homes.tolist())
        for rank in range(plan.ranks)
        if rank != home
    ]
    meeting = [
        (home, one, other)
        for one, home in enumerate(q.homes.tolist())
        for other in range(len(kv.blocks))
        if _share_heads(plan, one, other)
    ]
    block, src, dst = np.array(away, np.int32).reshape(-1, 3).T
    rank, one, other = np.array(meeting, np.int32).reshape(-1, 3).T
    steps = (
        Step((), (Move(("KV",), block, src, dst),)),
        Step((Attend(rank, one[:, None], other[:, None]),), ()),
    )
    ahead = replace(plan, pass_="forward", start=(), buffers=(), steps=steps)
    return ensure_verified(trim(ahead))


def _share_heads(plan: Plan, q: int, kv: int) -> bool:
    """True if some query head of a query block belongs to a head of a key block."""
    group = plan.workload.group
    mine, theirs = plan.side("Q").blocks[q].heads, plan.side("KV").blocks[kv].heads
    return mine.start < theirs.stop * group and theirs.start * group < mine.stop
