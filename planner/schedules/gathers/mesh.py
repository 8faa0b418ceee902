"""Mesh: ranks on a grid of a rows and b columns; columns share queries, rows keys and values.

step 0    q -> every rank of its column        rank (i, j) then has the queries of column j
step 1+t  rank (i, j) attends them x kv[i, j - t], which travels on to (i, j + 1)
          dkv follows one step behind and is back after b hops
last      out, dq -> the rank of the column that owns them

forward sends   Q a-1, OUT a-1, KV 2*f*(b-1)
backward sends  Q a-1, DOUT a-1, DQ a-1, KV 2*f*(b-1), DKV 2*f*b*(b>1)

About 2 sqrt(P) in total, compared with 2 f P for the ring. With one row it is the ring; with one
column, the exchange of partial results that decoding uses. Mesh-Attention (2512.20968).
"""

from ringloom.planner.ir import Pass, Plan, Step, result
from ringloom.planner.layouts import Layout, by_tokens
from ringloom.planner.schedules.grid import Grid, divide, divisor
from ringloom.planner.schedules.tour import tour, travelling_tensors
from ringloom.planner.workload import Workload


def mesh2d(
    work: Workload, ranks: int, pass_: Pass, *, columns: int = 0, layout: Layout = "zigzag"
) -> Plan:
    """Gathers queries by column and rotates KV in rows; columns=0: as square as possible."""
    columns = columns or ranks // divisor(ranks, int(ranks**0.5))
    grid, part = Grid(divide(ranks, columns, "columns"), columns), by_tokens(work, ranks, layout)
    q, kv = part.q.owned(ranks), part.kv.owned(ranks)
    visits, hops = [kv[grid.near(1, -t)] for t in range(columns)], [grid.near(1, 1)] * columns
    steps = [
        Step((), grid.gather(0, travelling_tensors("q", pass_)[0], q)),
        *tour("kv", grid.joined(0, q), visits, hops, pass_),
        Step((), grid.scatter(0, (result(pass_),), q)),
    ]
    return Plan("mesh2d", work, ranks, part, pass_, (), (), tuple(steps))
