"""Ulysses in stages: each stage exchanges some heads, attends them and sends the results back.

stage s      q[c, h], kv[c, h] of the stage's slices -> rank h      (all-to-all)
             rank h attends q x kv, and out[c, h] -> the owner of piece c
             all stages use the same buffers: peak memory / stages (UPipe)
ahead=1      the all-to-all of stage s + 1 overlaps the attention of stage s (head chunks, HCMS)
backward     the same; a KV slice of several stages is sent once, and its dkv returns once

forward sends   Q (P-1)/P, OUT (P-1)/P, KV 2*f*(P-1)/P
backward sends  Q (P-1)/P, DOUT (P-1)/P, DQ (P-1)/P, KV 2*f*(P-1)/P, DKV 2*f*(P-1)/P

Sends the bytes of Ulysses in more messages. UPipe (2602.21196), HCMS (2607.01817).
"""

from typing import Literal

from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Attend, Move, Pass, Plan, Step
from ringloom.planner.partitions import Partition
from ringloom.planner.passes.adjoint import adjoint
from ringloom.planner.schedules.heads.sharding import Exchange, make_shards
from ringloom.planner.workload import Workload


def ulysses_stages(
    work: Workload, ranks: int, pass_: Pass, *, stages: int = 0, ahead: Literal[0, 1] = 0
) -> Plan:
    """Processes each rank's heads in `stages` parts of at least one head; 0 uses up to two."""
    if pass_ == "backward":
        return adjoint(ulysses_stages(work, ranks, "forward", stages=stages, ahead=ahead))
    if stages > (limit := max(1, work.heads // ranks)):
        raise PlanError(f"stages={stages}: {work.heads} heads on {ranks} ranks allow only {limit}")
    stages, steps_per_stage = stages or min(2, limit, ranks), 1 if ahead else 2
    queries, keys, uses = make_shards(work, ranks, 1, ranks * stages, "contiguous")
    attends = [list[Attend]() for _ in range(steps_per_stage * (stages - 1) + 3)]
    moves = [list[Move]() for _ in attends]
    for stage in range(stages):
        numbers = range(stage, queries.slices, stages)  # the slice of each rank
        earlier = ({a for u in uses[n - stage : n] for a in u} for n in numbers)
        new_slices = [sorted({*uses[n]} - sent) for n, sent in zip(numbers, earlier, strict=True)]
        q, kv = Exchange(queries, [[n] for n in numbers]), Exchange(keys, new_slices)
        used_kv = Exchange(keys, [uses[n] for n in numbers])
        queries_here, kv_parts = q.attended_blocks()[:, 0], used_kv.attended_blocks()
        step = steps_per_stage * stage
        moves[step] += [*q.all_to_all(("Q",)), *kv.all_to_all(("KV",))]
        attends[step + 1] += [
            Attend(q.rank, queries_here, part) for part in kv_parts.swapaxes(0, 1)
        ]
        moves[step + 2] += q.all_to_all(("OUT",), reverse=True)
    steps = (Step(tuple(a), tuple(m)) for a, m in zip(attends, moves, strict=True))
    partition = Partition(queries.side, keys.side)
    return Plan("ulysses-stages", work, ranks, partition, pass_, (), (), tuple(steps))
