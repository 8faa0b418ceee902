"""Ulysses and USP: heads are sharded within groups of ranks; a KV ring or gather spans the groups.

    step 0        in each group  q[c, h], kv[c, h] -> the group's rank h        (all-to-all)
    step 1        kv of a set of G groups -> each of them                       (all-gather)
    step 2 + t    rank (r, g, h) attends its group's q[., h] x kv of the set r - t, slice h;
                  that kv travels on to rank (r + 1, g, h), in backward dkv one step behind
    last steps    dkv -> its group (reduce-scatter); out, dq, dkv -> the owner (all-to-all)
    backward      q, kv and out are kept from the forward pass, so only dout is sent (keep=1); with
                  a gather, where copies would take G times the memory, they are sent again (keep=0)

Rank (r, g, h) is (r * G + g) * U + h for U ranks per group, R sets of G groups. One group is
DeepSpeed-Ulysses, G = 1 is USP, R = 1 is Ulysses with an all-gather. order=context instead puts the
ranks of a ring next to each other, and those of an all-to-all P / U ranks apart (LoongTrain's two
orders). The layout balances the ring; with one group any layout is balanced, so tokens stay in
order.

forward sends   Q (U-1)/U, OUT (U-1)/U, KV 2*f*((U-1)/U+G*R-1)
backward sends  DOUT (U-1)/U, DQ (U-1)/U, DKV 2*f*((U-1)/U+G-1+G*R*(R>1)),
                Q (U-1)/U*(keep==0), KV 2*f*(G*(R-1)+((U-1)/U+G-1)*(keep==0))

It is longer than other schedules because it composes three degrees and keeps copies.
"""

from typing import Literal

from ringloom.planner.errors import PlanError
from ringloom.planner.ir import QUERY_SIDE, InitialCopy, Move, Pass, Plan, Step, result
from ringloom.planner.layouts import Layout
from ringloom.planner.partitions import Partition
from ringloom.planner.schedules.grid import NODE, Grid, divisor, relabel
from ringloom.planner.schedules.heads.sharding import Exchange, shards
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

    keep=1: the backward pass reuses the inputs that the forward pass sent, and OUT in place.
    """
    ulysses, ring, gather = degrees(work, ranks, ulysses, ring, gather)
    groups = ring * gather
    queries, keys, uses = shards(work, ulysses, groups, ulysses, layout)
    q = Exchange(queries, [[h] for h in range(queries.slices)])
    kv = q if keys is queries else Exchange(keys, uses)
    grid, of_group = Grid(ring, gather, ulysses), kv.attended().reshape(ranks, -1)
    sent, start = (
        q.all_to_all(QUERY_SIDE[pass_]) + kv.all_to_all(("KV",)),
        tuple[InitialCopy, ...](),
    )
    gathered, shares = grid.gather(1, ("KV",), of_group), tuple[Move, ...]()
    if keep and pass_ == "backward":
        copies = (InitialCopy(m.tensors, m.blocks, m.dst) for m in gathered)
        start = (*q.received("Q"), *q.received("OUT"), *kv.received("KV"), *copies)
        sent, gathered = q.all_to_all(("DOUT",)), ()
    back = q.all_to_all((result(pass_),), back=True)
    if pass_ == "backward":
        shares = grid.scatter(1, ("DKV",), of_group)
        back += kv.all_to_all(("DKV",), back=True)
    before, after = (Step((), sent), Step((), gathered)), (Step((), shares), Step((), back))
    visits, hops = [kv.attended(gather, t) for t in range(ring)], [grid.near(0, 1)] * ring
    around = tour("kv", q.attended()[:, 0], visits, hops, pass_)
    steps = (*before, *around, *after)
    name, partition = "ulysses" if groups == 1 else "usp", Partition(queries.side, keys.side)
    plan = Plan(name, work, ranks, partition, pass_, start, (), steps)
    return plan if order == "heads" else relabel(plan, grid.rank.reshape(ulysses, -1).T)


def degrees(
    work: Workload, ranks: int, ulysses: int, ring: int, gather: int
) -> tuple[int, int, int]:
    """Returns the degrees with ranks = ulysses x ring x gather; chooses those given as 0."""
    rest = ranks // max(1, ring * gather, ring, gather)
    if not ulysses:
        most = min(work.kv_heads, NODE, max(1, rest - 1))
        ulysses = rest if ring and gather else divisor(rest, most)
    ring = ring or ranks // max(1, ulysses * (gather or 1))
    gather = gather or ranks // max(1, ulysses * ring)
    if min(ulysses, ring, gather) < 1 or ulysses * ring * gather != ranks:
        words = f"ulysses={ulysses} x ring={ring}" + f" x gather={gather}" * (gather != 1)
        raise PlanError(f"{words} is {ulysses * ring * gather}, not {ranks} ranks")
    return ulysses, ring, gather
