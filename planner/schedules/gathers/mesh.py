"""Mesh: on a grid of a x b ranks, columns share queries, and rows share keys and values.

step 0    q -> every rank of its column        rank (i, j) then has the queries of column j
step 1+t  rank (i, j) attends q x kv[i, j - t], and kv[i, j - t] -> (i, j + 1)
          dkv follows one step behind and is back after b hops
last      out, dq -> their owner in the column

forward sends   Q a-1, OUT a-1, KV 2*f*(b-1)
backward sends  Q a-1, DOUT a-1, DQ a-1, KV 2*f*(b-1), DKV 2*f*b*(b>1)

A square mesh sends about 2 sqrt(P) in total, the ring 2 f P. A mesh with one row is the ring; a
mesh with one column exchanges partial results, as in decoding. Mesh-Attention (2512.20968).
"""

from ringloom.planner.ir import Pass, Plan, Step, result_tensor
from ringloom.planner.layouts import Layout, by_tokens
from ringloom.planner.schedules.grid import Grid, divide, largest_divisor
from ringloom.planner.schedules.tour import tour, travelling_tensors
from ringloom.planner.workload import Workload


def mesh2d(
    work: Workload, ranks: int, pass_: Pass, *, columns: int = 0, layout: Layout = "zigzag"
) -> Plan:
    """Gathers queries by column and rotates KV in rows; columns=0 makes a nearly square grid."""
    columns = columns or ranks // largest_divisor(ranks, int(ranks**0.5))
    grid = Grid(divide(ranks, columns, "columns"), columns)
    partition = by_tokens(work, ranks, layout)
    q, kv = partition.q.owned(ranks), partition.kv.owned(ranks)
    visits = [kv[grid.neighbour(1, -t)] for t in range(columns)]
    hops = [grid.neighbour(1, 1)] * columns
    steps = [
        Step((), grid.gather(0, travelling_tensors("q", pass_)[0], q)),
        *tour("kv", grid.gather_blocks(0, q), visits, hops, pass_),
        Step((), grid.scatter(0, (result_tensor(pass_),), q)),
    ]
    return Plan("mesh2d", work, ranks, partition, pass_, (), (), tuple(steps))
