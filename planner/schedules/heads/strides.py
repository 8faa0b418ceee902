"""All-gather by strides of heads: ranks attend to one stride while they gather the next.

step 0       kv heads 0..s-1 of each rank -> every rank
step i       rank r attends q[r] x all kv, heads of stride i - 1      the next stride -> every rank
backward     dkv of each stride -> its owner (reduce-scatter), a step after it was attended

forward sends   KV 2*f*(P-1)
backward sends  KV 2*f*(P-1), DKV 2*f*(P-1)

As many bytes as the all-gather, but a rank holds two strides of the keys instead of all heads. Like
the all-gather it stays whole under every mask; `halo` sends only what a window sees.
Llama 3 (Grattafiori et al. 2024, section 3.3.2), heads_k_stride of ring-flash-attention.
"""

import numpy as np

from ringloom.planner.ir import Attend, Pass, Plan, Step
from ringloom.planner.layouts import Layout, by_heads, cut, sides
from ringloom.planner.partitions import Partition
from ringloom.planner.passes.adjoint import adjoint
from ringloom.planner.schedules.grid import Grid
from ringloom.planner.workload import Workload


def llama3(
    work: Workload, ranks: int, pass_: Pass, *, stride: int = 0, layout: Layout = "zigzag"
) -> Plan:
    """Sends KV to every rank, `stride` KV heads at a time; stride=0: a quarter of them."""
    if pass_ == "backward":
        return adjoint(llama3(work, ranks, "forward", stride=stride, layout=layout))
    many = -(-work.kv_heads // stride) if stride else min(4 if ranks > 1 else 1, work.kv_heads)
    kv_slices = cut(work.kv_heads, many)
    q_slices = [range(s.start * work.group, s.stop * work.group) for s in kv_slices]
    queries, keys = sides(work, ranks, layout)
    q, kv = by_heads(queries, q_slices), by_heads(keys, kv_slices)
    grid, steps = Grid(ranks), list[Step]()
    for i in range(many + 1):
        every = np.tile(np.arange(max(0, i - 1), len(kv), many), (ranks, 1))
        attends = (Attend(grid.rank, q.owned(ranks)[:, i - 1 :: many], every),) if i else ()
        moves = grid.gather(0, ("KV",), kv.owned(ranks)[:, i::many]) if i < many else ()
        steps.append(Step(attends, moves))
    return Plan("llama3", work, ranks, Partition(q, kv), pass_, (), (), tuple(steps))
