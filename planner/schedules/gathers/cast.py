"""Group cast: sends exactly the keys and values that each rank's queries see under the mask.

step 0       rank r attends q[r] x kv[r]        kv of stage 1 -> the ranks that see it
step n       rank r attends q[r] x kv of stage n, while the next stage arrives
backward     dkv of the same pieces -> their owner (group reduce)

   causal window of W:    | . . . . W W | -> the next rank: only the border, a halo

forward sends   KV 2*f*(P-1)
backward sends  KV 2*f*(P-1), DKV 2*f*(P-1)      of a halo W tokens instead of P - 1 shards

Tokens that all ranks see, such as global tokens, go to every rank once; with stages=1, in one
round. Group collectives of MagiAttention, swa_p2p of Megatron-LM. This schedule reads the mask: it
cuts keys where the set of ranks that see them changes. For irregular cuts, programs are tables.
"""

import numpy as np

from ringloom.planner.ir import Attend, Move, Pass, Plan, Step
from ringloom.planner.layouts import Layout, cut, sides, whole_heads
from ringloom.planner.partitions import Ints, Partition
from ringloom.planner.passes.adjoint import adjoint
from ringloom.planner.schedules.gathers.needs import cut_by_users
from ringloom.planner.workload import Workload


def group_cast(
    work: Workload, ranks: int, pass_: Pass, *, stages: int = 0, layout: Layout = "contiguous"
) -> Plan:
    """Sends KV in `stages` rounds to the ranks that see it; 0: one round per rank distance."""
    if pass_ == "backward":
        return adjoint(group_cast(work, ranks, "forward", stages=stages, layout=layout))
    rank, (queries, keys) = np.arange(ranks), sides(work, ranks, layout)
    pieces, users = cut_by_users(work, ranks, queries, keys)
    partition = Partition(whole_heads(queries, work.heads), whole_heads(pieces, work.kv_heads))
    q, owned = partition.q.owned(ranks), partition.kv.owned(ranks)

    def visible_blocks(hop: int) -> Ints:
        """Returns the blocks of each rank that the rank `hop` places later sees: [ranks, w]."""
        return np.where((owned >= 0) & users[owned, (rank + hop)[:, None] % ranks], owned, -1)

    steps, blocks_at_hand = list[Step](), [visible_blocks(0)]
    for stage in [*cut(ranks - 1, stages or max(1, ranks - 1)), range(0)]:
        sends = {hop + 1: visible_blocks(hop + 1) for hop in stage}
        moves = (Move(("KV",), b, rank, (rank + hop) % ranks) for hop, b in sends.items())
        attends = (Attend(rank, q, np.hstack(blocks_at_hand)),) if blocks_at_hand else ()
        steps.append(Step(attends, tuple(moves)))
        blocks_at_hand = [np.roll(blocks, hop, axis=0) for hop, blocks in sends.items()]
    return Plan("group-cast", work, ranks, partition, pass_, (), (), tuple(steps))
