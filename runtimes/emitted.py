"""Programs that are emitted to be run, with or without a forward plan to begin with."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from codegen import emit
from planner.ir import Attend, Held, Move, Plan, Step
from planner.passes.trim import trim
from planner.plans import Plans
from planner.verify import verify

SIDES = ("q", "kv", "kv", "q", "q", "q")  # of what functions take: q, k, v, dout, out, lse
RESULTS = {
    "attention": ("q", "q", "kv", "kv"),
    "forward": ("q", "q"),
    "backward": ("q", "kv", "kv"),
}


def source_of(plans: Plans, target: str) -> str:
    """The program of plans; beside a backward plan alone stands a forward plan of its layout."""
    if plans.forward is None and plans.backward is not None:
        backward = fetched(plans.backward)
        plans = Plans(gathered(backward), backward)
    return emit(plans, target)


def fetched(plan: Plan) -> Plan:
    """A backward plan that needs nothing of a forward pass: step 0 brings what it had before.

    Held Q, KV --> Move(Q), Move(KV)      Held OUT --> Move(STATS)
    """
    if not plan.start:
        return plan
    moves = tuple(move for held in plan.start for move in _bringing(plan, held))
    alone = replace(plan, start=(), buffers=(), steps=(Step((), moves), *plan.steps))
    return verify(alone)


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
    return verify(trim(ahead))


def _share_heads(plan: Plan, q: int, kv: int) -> bool:
    """True if some query head of a query block belongs to a head of a key block."""
    group = plan.workload.group
    q_heads, kv_heads = plan.side("Q").blocks[q].heads, plan.side("KV").blocks[kv].heads
    return q_heads.start < kv_heads.stop * group and kv_heads.start * group < q_heads.stop
