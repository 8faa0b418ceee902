"""All-gather by strides of heads: ranks attend one stride of heads while they gather the next.

step 0       kv heads 0..s-1 of each rank -> every rank
step i       rank r attends q[r] x all kv, heads of stride i - 1      the next stride -> every rank
backward     dkv of each stride -> its owner (reduce-scatter), one step later

forward sends   KV 2*f*(P-1)
backward sends  KV 2*f*(P-1), DKV 2*f*(P-1)

Sends the bytes of the all-gather, but a rank holds two strides of KV heads instead of all heads.
Sends all keys under every mask; `halo` sends only the keys that a window sees.
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
    """Sends KV to every rank, `stride` KV heads at a time; stride=0 sends a quarter at a time."""
    if pass_ == "backward":
        return adjoint(llama3(work, ranks, "forward", stride=stride, layout=layout))
    count = -(-work.kv_heads // stride) if stride else min(4 if ranks > 1 else 1, work.kv_heads)
    kv_slices = cut(work.kv_heads, count)
    q_slices = [range(s.start * work.group, s.stop * work.group) for s in kv_slices]
    queries, keys = sides(work, ranks, layout)
    q, kv = by_heads(queries, q_slices), by_heads(keys, kv_slices)
    grid, steps = Grid(ranks), list[Step]()
    for n in range(count + 1):
        all_kv = np.tile(np.arange(max(0, n - 1), len(kv), count), (ranks, 1))
        attends = (Attend(grid.rank, q.owned(ranks)[:, n - 1 :: count], all_kv),) if n else ()
        moves = grid.gather(0, ("KV",), kv.owned(ranks)[:, n::count]) if n < count else ()
        steps.append(Step(attends, moves))
    return Plan("llama3", work, ranks, Partition(q, kv), pass_, (), (), tuple(steps))
