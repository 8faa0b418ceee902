"""Ulysses in stages: all-to-all of some heads, attention on them, all-to-all of the results.

stage s      q[c, h], kv[c, h] of the stage's slices -> rank h      (all-to-all)
             rank h attends them, and out[c, h] -> the owner of piece c
             the buffers of one stage serve the next: peak memory / stages (UPipe)
ahead=1      the all-to-all of stage s + 1 overlaps the attention of stage s (head chunks, HCMS)
backward     the same; a KV slice that several stages use is sent once, and its dkv returns once

forward sends   Q (P-1)/P, OUT (P-1)/P, KV 2*f*(P-1)/P
backward sends  Q (P-1)/P, DOUT (P-1)/P, DQ (P-1)/P, KV 2*f*(P-1)/P, DKV 2*f*(P-1)/P

As many bytes as Ulysses in more messages. UPipe (2602.21196), HCMS (2607.01817).
"""

from typing import Literal

from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Attend, Move, Pass, Plan, Step
from ringloom.planner.partitions import Partition
from ringloom.planner.passes.adjoint import adjoint
from ringloom.planner.schedules.heads.sharding import Exchange, shards
from ringloom.planner.workload import Workload


def ulysses_stages(
    work: Workload, ranks: int, pass_: Pass, *, stages: int = 0, ahead: Literal[0, 1] = 0
) -> Plan:
    """Processes each rank's heads in `stages` parts, at most one per head; 0: two, or one."""
    if pass_ == "backward":
        return adjoint(ulysses_stages(work, ranks, "forward", stages=stages, ahead=ahead))
    if stages > (most := max(1, work.heads // ranks)):
        raise PlanError(f"stages={stages}: {work.heads} heads on {ranks} ranks allow only {most}")
    stages, pace = stages or min(2, most, ranks), 1 if ahead else 2
    queries, keys, uses = shards(work, ranks, 1, ranks * stages, "contiguous")
    attends = [list[Attend]() for _ in range(pace * (stages - 1) + 3)]
    moves = [list[Move]() for _ in attends]
    for stage in range(stages):
        numbers = range(stage, queries.slices, stages)  # the slice of each rank
        fresh = [sorted({*uses[n]} - {a for u in uses[n - stage : n] for a in u}) for n in numbers]
        q, kv = Exchange(queries, [[n] for n in numbers]), Exchange(keys, fresh)
        used = Exchange(keys, [uses[n] for n in numbers])
        queries_here, visible = q.attended()[:, 0], used.attended().swapaxes(0, 1)
        moves[pace * stage] += [*q.all_to_all(("Q",)), *kv.all_to_all(("KV",))]
        attends[pace * stage + 1] += [Attend(q.rank, queries_here, part) for part in visible]
        moves[pace * stage + 2] += q.all_to_all(("OUT",), back=True)
    steps = (Step(tuple(a), tuple(m)) for a, m in zip(attends, moves, strict=True))
    part = Partition(queries.side, keys.side)
    return Plan("ulysses-stages", work, ranks, part, pass_, (), (), tuple(steps))
