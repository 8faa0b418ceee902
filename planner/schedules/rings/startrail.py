"""StarTrail: teams of C ranks gather queries and keys; each member is on a ring of its own.

rank (s, i, c) of C sections with P / C^2 teams of C members: the team (s, i) shares its queries
   step 0    q, kv of each rank -> all members of its team
   step 1    kv of team (s + c, i), from its member c -> rank (s, i, c)
   step 2+t  rank (s, i, c) attends its team's q x kv of team (s + c, i - t), and this kv
             -> (s, i + 1, c); dkv one step behind, finally to the source of kv
   last      out, dq and dkv -> their owner in the team

forward sends   Q C-1, OUT C-1, KV 2*f*(P/C+C-2)
backward sends  Q C-1, DOUT C-1, DQ C-1, KV 2*f*(P/C+C-2), DKV 2*f*(C-1+(P/C if C*C<P else C-1))

Sends about 1/C of the ring's bytes between teams and needs C times its memory; C = 1 is the ring.
StarTrail (Liu et al. 2024), WallFacer.
"""

import numpy as np

from ringloom.planner.ir import Move, Pass, Plan, Step, result_tensor
from ringloom.planner.layouts import Layout, by_tokens
from ringloom.planner.schedules.grid import Grid, divide
from ringloom.planner.schedules.tour import tour, travelling_tensors
from ringloom.planner.workload import Workload


def startrail(
    work: Workload, ranks: int, pass_: Pass, *, team: int = 0, layout: Layout = "zigzag"
) -> Plan:
    """Uses teams of `team` ranks; team^2 must divide the ranks. 0: the largest such team."""
    team = team or max(c for c in range(1, ranks + 1) if ranks % (c * c) == 0)
    grid, partition = (
        Grid(team, divide(ranks, team**2, "team^2"), team),
        by_tokens(work, ranks, layout),
    )
    q, kv = partition.q.owned(ranks), partition.kv.owned(ranks)
    section, index, member = np.indices(grid.shape).reshape(3, -1)
    source = grid.ranks[(section + member) % team, index, member]  # of each ring's KV
    team_kv, next_rank = grid.gather_blocks(2, kv), grid.neighbour(1, 1)
    visits = [team_kv[source[grid.neighbour(1, -t)]] for t in range(grid.shape[1])]
    hops = [next_rank] * (len(visits) - 1) + [source[next_rank]]
    gathers = grid.gather(2, travelling_tensors("q", pass_)[0], q) + grid.gather(2, ("KV",), kv)
    returns = grid.scatter(2, (result_tensor(pass_),), q)
    if pass_ == "backward":
        returns += grid.scatter(2, ("DKV",), kv)
    steps = [
        Step((), gathers),
        Step((), (Move(("KV",), visits[0], source, grid.rank),)),
        *tour("kv", grid.gather_blocks(2, q), visits, hops, pass_),
        Step((), returns),
    ]
    return Plan("startrail", work, ranks, partition, pass_, (), (), tuple(steps))
