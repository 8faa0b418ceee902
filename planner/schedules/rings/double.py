"""Double ring: a ring inside each node, and a ring of nodes that hops once per inner round.

rank (g, h) of N nodes with n ranks; window o, inner step i = 0..n-1
   attends q x kv[g - o, h - i]      it travels on to (g, h + 1) inside the node
   i = 0     kv[g - o, h] -> (g + 1, h): the next window's, overlapped with n rounds of attention
backward     dkv follows one step behind around the node; its last hop of a window goes
             -> (g + 1, h + 1), where its kv starts the next one; back after N windows

forward sends   KV 2*f*(P-1)
backward sends  KV 2*f*(P-1), DKV 2*f*P*(P>1)

As many bytes as the ring; each rank sends N - 1 of the blocks to another node, all ranks at once.
LoongTrain (Gu et al. 2024), BurstEngine (Sun et al. 2025).
"""

from ringloom.planner.ir import Attend, Move, Pass, Plan, Step
from ringloom.planner.layouts import Layout, by_tokens
from ringloom.planner.partitions import Ints
from ringloom.planner.schedules.grid import NODE, Grid, divide, divisor
from ringloom.planner.workload import Workload


def double_ring(
    work: Workload, ranks: int, pass_: Pass, *, node: int = 0, layout: Layout = "zigzag"
) -> Plan:
    """Rotates KV within nodes of `node` ranks, and between nodes; node=0 chooses at most 8."""
    inner = node or divisor(ranks, min(NODE, ranks - 1))
    outer = divide(ranks, inner, "node")
    grid, part, steps = Grid(outer, inner), by_tokens(work, ranks, layout), list[Step]()
    q, kv = part.q.owned(ranks), part.kv.owned(ranks)
    inside, outside = grid.near(1, 1), grid.near(0, 1)

    def visitor(t: int) -> Ints:
        return kv[grid.near(0, -(t // inner))[grid.near(1, -(t % inner))]]

    for t in range(ranks + (pass_ == "backward")):
        attends, moves = list[Attend](), list[Move]()
        if t < ranks:
            attends.append(Attend(grid.rank, q, visitor(t)))
        if t < ranks and t % inner < inner - 1:
            moves.append(Move(("KV",), visitor(t), grid.rank, inside))
        if t % inner == 0 and t + inner < ranks:
            moves.append(Move(("KV",), visitor(t), grid.rank, outside))
        if pass_ == "backward" and t:
            onward = inside if t % inner else outside[inside]
            moves.append(Move(("DKV",), visitor(t - 1), grid.rank, onward))
        steps.append(Step(tuple(attends), tuple(moves)))
    return Plan("double-ring", work, ranks, part, pass_, (), (), tuple(steps))
