"""StarTrail: teams of C ranks gather their queries and keys; each member runs its own sub-ring.

rank (s, i, c) of C sections with P / C^2 teams of C members: the team (s, i) shares its queries
   step 0    q, kv of each rank -> its whole team
   step 1    the kv of team (s + c, i) -> rank (s, i, c), from its member c
   step 2+t  rank (s, i, c) attends its team's q x the kv of team (s + c, i - t), which
             travels on to (s, i + 1, c); dkv one step behind, finally to the source of kv
   last      out, dq and dkv -> the member of the team that owns them

forward sends   Q C-1, OUT C-1, KV 2*f*(P/C+C-2)
backward sends  Q C-1, DOUT C-1, DQ C-1, KV 2*f*(P/C+C-2), DKV 2*f*(C-1+(P/C if C*C<P else C-1))

About 1/C of the ring's traffic between teams, for C times its memory; the ring if C = 1.
StarTrail (Liu et al. 2024), WallFacer.
"""

import numpy as np

from ringloom.planner.ir import Move, Pass, Plan, Step, result
from ringloom.planner.layouts import Layout, by_tokens
from ringloom.planner.schedules.grid import Grid, divide
from ringloom.planner.schedules.tour import tour, travelling_tensors
from ringloom.planner.workload import Workload


def startrail(
    work: Workload, ranks: int, pass_: Pass, *, team: int = 0, layout: Layout = "zigzag"
) -> Plan:
    """Uses teams of `team` ranks, whose square divides the ranks; team=0: the largest such."""
    team = team or max(c for c in range(1, ranks + 1) if ranks % (c * c) == 0)
    grid, part = Grid(team, divide(ranks, team**2, "team^2"), team), by_tokens(work, ranks, layout)
    q, kv = part.q.owned(ranks), part.kv.owned(ranks)
    section, place, member = np.indices(grid.shape).reshape(3, -1)
    first = grid.ranks[(section + member) % team, place, member]  # source of each sub-ring's KV
    shared, onward = grid.joined(2, kv), grid.near(1, 1)
    visits = [shared[first[grid.near(1, -t)]] for t in range(grid.shape[1])]
    hops = [onward] * (len(visits) - 1) + [first[onward]]
    gathered = grid.gather(2, travelling_tensors("q", pass_)[0], q) + grid.gather(2, ("KV",), kv)
    back = grid.scatter(2, (result(pass_),), q)
    if pass_ == "backward":
        back += grid.scatter(2, ("DKV",), kv)
    steps = [
        Step((), gathered),
        Step((), (Move(("KV",), visits[0], first, grid.rank),)),
        *tour("kv", grid.joined(2, q), visits, hops, pass_),
        Step((), back),
    ]
    return Plan("startrail", work, ranks, part, pass_, (), (), tuple(steps))
