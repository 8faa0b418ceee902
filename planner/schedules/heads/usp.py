"""Ulysses and USP: groups of ranks shard heads; a ring or gather of KV connects the groups.

    step 0        in each group  q[c, h], kv[c, h] -> the group's rank h        (all-to-all)
    step 1        kv of a set of G groups -> each group of the set              (all-gather)
    step 2 + t    rank (r, g, h) attends its group's q[., h] x kv of the set r - t, slice h;
                  this kv -> rank (r + 1, g, h); backward, dkv follows one step behind
    last steps    dkv -> its group (reduce-scatter); out, dq, dkv -> the owner (all-to-all)
    backward      keep=1 keeps q, kv and out from the forward pass and sends only dout; keep=0 sends
                  all again, for gathers, where copies would take G times the memory

Rank (r, g, h) is (r * G + g) * U + h for U ranks per group and R sets of G groups. One group is
DeepSpeed-Ulysses, G = 1 is USP, R = 1 is Ulysses with an all-gather. order=context instead places
the ranks of a ring next to each other, and the ranks of an all-to-all P / U ranks apart (the two
orders of LoongTrain). The layout balances the ring. With one group, any layout is balanced, so
tokens stay in order.

forward sends   Q (U-1)/U, OUT (U-1)/U, KV 2*f*((U-1)/U+G*R-1)
backward sends  DOUT (U-1)/U, DQ (U-1)/U, DKV 2*f*((U-1)/U+G-1+G*R*(R>1)),
                Q (U-1)/U*(keep==0), KV 2*f*(G*(R-1)+((U-1)/U+G-1)*(keep==0))

This schedule is longer than others because it combines three degrees and keeps copies.
"""

from typing import Literal

from ringloom.planner.errors import PlanError
from ringloom.planner.ir import QUERY_SIDE, InitialCopy, Move, Pass, Plan, Step, result_tensor
from ringloom.planner.layouts import Layout
from ringloom.planner.partitions import Partition
from ringloom.planner.schedules.grid import NODE, Grid, largest_divisor, relabel
from ringloom.planner.schedules.heads.sharding import Exchange, make_shards
from ringloom.planner.schedules.tour import tour
from ringloom.planner.workload import Workload


def usp(
    work: Workload,
    ranks: int,
    pass_: Pass,
    *,
    ulysses: int = 0,
    ring: int = 0,
    gather: int = 1,
    order: Literal["heads", "context"] = "heads",
    layout: Layout = "zigzag",
    keep: Literal[0, 1] = 1,
) -> Plan:
    """Shards heads over `ulysses` ranks and rotates KV among `ring` sets of `gather` groups (USP).

    With keep=1, the backward pass reuses the inputs and OUT that the forward pass leaves.
    """
    ulysses, ring, gather = choose_degrees(work, ranks, ulysses, ring, gather)
    groups = ring * gather
    queries, keys, uses = make_shards(work, ulysses, groups, ulysses, layout)
    q = Exchange(queries, [[h] for h in range(queries.slices)])
    kv = q if keys is queries else Exchange(keys, uses)
    grid, group_kv = Grid(ring, gather, ulysses), kv.attended_blocks().reshape(ranks, -1)
    start = tuple[InitialCopy, ...]()
    sends = q.all_to_all(QUERY_SIDE[pass_]) + kv.all_to_all(("KV",))
    gathered, reductions = grid.gather(1, ("KV",), group_kv), tuple[Move, ...]()
    if keep and pass_ == "backward":
        copies = (InitialCopy(m.tensors, m.blocks, m.dst) for m in gathered)
        start = (*q.received("Q"), *q.received("OUT"), *kv.received("KV"), *copies)
        sends, gathered = q.all_to_all(("DOUT",)), ()
    returns = q.all_to_all((result_tensor(pass_),), reverse=True)
    if pass_ == "backward":
        reductions = grid.scatter(1, ("DKV",), group_kv)
        returns += kv.all_to_all(("DKV",), reverse=True)
    visits = [kv.attended_blocks(gather, t) for t in range(ring)]
    hops = [grid.neighbour(0, 1)] * ring
    rounds = tour("kv", q.attended_blocks()[:, 0], visits, hops, pass_)
    before, after = (sends, gathered), (reductions, returns)
    steps = *(Step((), m) for m in before), *rounds, *(Step((), m) for m in after)
    name, partition = "ulysses" if groups == 1 else "usp", Partition(queries.side, keys.side)
    plan = Plan(name, work, ranks, partition, pass_, start, (), steps)
    return plan if order == "heads" else relabel(plan, grid.rank.reshape(ulysses, -1).T)


def choose_degrees(
    work: Workload, ranks: int, ulysses: int, ring: int, gather: int
) -> tuple[int, int, int]:
    """Returns degrees with ranks = ulysses x ring x gather; replaces degrees of 0."""
    remaining = ranks // max(1, ring * gather, ring, gather)
    if not ulysses:
        limit = min(work.kv_heads, NODE, max(1, remaining - 1))
        ulysses = remaining if ring and gather else largest_divisor(remaining, limit)
    ring = ring or ranks // max(1, ulysses * (gather or 1))
    gather = gather or ranks // max(1, ulysses * ring)
    if min(ulysses, ring, gather) < 1 or ulysses * ring * gather != ranks:
        product = f"ulysses={ulysses} x ring={ring}" + f" x gather={gather}" * (gather != 1)
        raise PlanError(f"{product} is {ulysses * ring * gather}, not {ranks} ranks")
    return ulysses, ring, gather
