"""Tree: queries go down a tree from their owner, partial results come back up; KV stays.

step k       q[r - d], d < 2^k     -> r + 2^k         0 -> 1, then 0 1 -> 2 3, then 0 1 2 3 -> 4 5..
then         rank r attends all q x kv[r]
and back up  out[r - d], d < 2^k   -> r from r + 2^k, merged by lse at every level
backward     the same: Q, DOUT and STATS go down, DQ comes up, DKV stays

forward sends   Q P-1, OUT P-1
backward sends  Q P-1, DOUT P-1, DQ P-1

For decoding: log P steps each way, with one transfer per level of the tree. The owner of a query
sends log P messages for any length of the cache. Tree Attention (Shyam et al. 2024).
"""

import numpy as np

from ringloom.planner.ir import Attend, Move, Pass, Plan, Step, result_tensor
from ringloom.planner.layouts import Layout, by_tokens
from ringloom.planner.schedules.tour import travelling_tensors
from ringloom.planner.workload import Workload


def tree(work: Workload, ranks: int, pass_: Pass, *, layout: Layout = "contiguous") -> Plan:
    """Runs a binomial tree from every rank, or a single tree if only one rank has queries."""
    partition, rank = by_tokens(work, ranks, layout), np.arange(ranks)
    q, sums = partition.q.owned(ranks), (result_tensor(pass_),)
    inputs, _ = travelling_tensors("q", pass_)
    down, up = list[Step](), list[Step]()
    for distance in (2**k for k in range((ranks - 1).bit_length())):
        blocks = np.hstack([q[(rank - d) % ranks] for d in range(min(distance, ranks - distance))])
        dst = (rank + distance) % ranks
        down.append(Step((), (Move(inputs, blocks, rank, dst),)))
        up.insert(0, Step((), (Move(sums, blocks, dst, rank),)))
    all_queries = np.broadcast_to(np.arange(len(partition.q)), (ranks, len(partition.q)))
    attend = Step((Attend(rank, all_queries, partition.kv.owned(ranks)),), ())
    return Plan("tree", work, ranks, partition, pass_, (), (), (*down, attend, *up))
