"""Group cast: sends exactly the keys and values that each rank's queries see under the mask.

step 0       rank r attends q[r] x kv[r]        kv of stage 1 -> the ranks that need it
step 1..n    rank r attends q[r] x the kv of stage n; the next stage arrives meanwhile
backward     dkv of the same pieces -> their owner (group reduce)

   causal window of W:    | . . . . W W | -> the next rank: its border only, a halo

forward sends   KV 2*f*(P-1)
backward sends  KV 2*f*(P-1), DKV 2*f*(P-1)      of a halo W tokens instead of P - 1 shards

Tokens that all ranks see, such as global ones, go to every rank once; with stages=1, in one round.
MagiAttention's group collectives, swa_p2p of Megatron-LM. This schedule reads the mask: it cuts
keys where the set of ranks that see them changes. If that is irregular, programs are tables.
"""

import numpy as np

from ringloom.planner.ir import Attend, Move, Pass, Plan, Step
from ringloom.planner.layouts import Layout, cut, sides, whole_heads
from ringloom.planner.partitions import Ints, Partition
from ringloom.planner.passes.adjoint import adjoint
from ringloom.planner.schedules.gathers.needs import by_users
from ringloom.planner.workload import Workload


def group_cast(
    work: Workload, ranks: int, pass_: Pass, *, stages: int = 0, layout: Layout = "contiguous"
) -> Plan:
    """Sends KV to the ranks that see it in `stages` rounds; stages=0: one per rank distance."""
    if pass_ == "backward":
        return adjoint(group_cast(work, ranks, "forward", stages=stages, layout=layout))
    rank, (queries, keys) = np.arange(ranks), sides(work, ranks, layout)
    pieces, users = by_users(work, ranks, queries, keys)
    part = Partition(whole_heads(queries, work.heads), whole_heads(pieces, work.kv_heads))
    q, own = part.q.owned(ranks), part.kv.owned(ranks)

    def needed(hop: int) -> Ints:
        """Returns the blocks that the rank `hop` places after each rank sees: [ranks, w], or -1."""
        return np.where((own >= 0) & users[own, (rank + hop)[:, None] % ranks], own, -1)

    steps, arrived = list[Step](), [needed(0)]
    for stage in [*cut(ranks - 1, stages or max(1, ranks - 1)), range(0)]:
        sent = {hop + 1: needed(hop + 1) for hop in stage}
        moves = (Move(("KV",), b, rank, (rank + hop) % ranks) for hop, b in sent.items())
        attends = (Attend(rank, q, np.hstack(arrived)),) if arrived else ()
        steps.append(Step(attends, tuple(moves)))
        arrived = [np.roll(blocks, hop, axis=0) for hop, blocks in sent.items()]
    return Plan("group-cast", work, ranks, part, pass_, (), (), tuple(steps))
