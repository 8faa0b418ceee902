"""Double ring: a ring inside each node, and a ring of nodes with one hop per inner round.

rank (g, h) of N nodes with n ranks; window o, inner step i = 0..n-1
   attends q x kv[g - o, h - i]      kv[g - o, h - i] -> (g, h + 1) inside the node
   i = 0     kv[g - o, h] -> (g + 1, h) for the next window, during n rounds of attention
backward     dkv follows one step behind around the node; the last hop of each window is
             -> (g + 1, h + 1), where its kv starts the next window; back after N windows

forward sends   KV 2*f*(P-1)
backward sends  KV 2*f*(P-1), DKV 2*f*P*(P>1)

Sends the bytes of the ring; each rank sends N - 1 of its blocks to another node.
LoongTrain (Gu et al. 2024), BurstEngine (Sun et al. 2025).
"""

from ringloom.planner.ir import Attend, Move, Pass, Plan, Step
from ringloom.planner.layouts import Layout, by_tokens
from ringloom.planner.partitions import Ints
from ringloom.planner.schedules.grid import NODE, Grid, divide, largest_divisor
from ringloom.planner.workload import Workload


def double_ring(
    work: Workload, ranks: int, pass_: Pass, *, node: int = 0, layout: Layout = "zigzag"
) -> Plan:
    """Rotates KV within nodes of `node` ranks and between nodes; 0: the most, up to 8."""
    node_ranks = node or largest_divisor(ranks, min(NODE, ranks - 1))
    nodes = divide(ranks, node_ranks, "node")
    grid, partition, steps = Grid(nodes, node_ranks), by_tokens(work, ranks, layout), list[Step]()
    q, kv = partition.q.owned(ranks), partition.kv.owned(ranks)
    next_in_node, next_node = grid.neighbour(1, 1), grid.neighbour(0, 1)

    def visitors(t: int) -> Ints:
        return kv[grid.neighbour(0, -(t // node_ranks))[grid.neighbour(1, -(t % node_ranks))]]

    for t in range(ranks + (pass_ == "backward")):
        attends, moves = list[Attend](), list[Move]()
        if t < ranks:
            attends.append(Attend(grid.rank, q, visitors(t)))
        if t < ranks and t % node_ranks < node_ranks - 1:
            moves.append(Move(("KV",), visitors(t), grid.rank, next_in_node))
        if t % node_ranks == 0 and t + node_ranks < ranks:
            moves.append(Move(("KV",), visitors(t), grid.rank, next_node))
        if pass_ == "backward" and t:
            dst = next_in_node if t % node_ranks else next_node[next_in_node]
            moves.append(Move(("DKV",), visitors(t - 1), grid.rank, dst))
        steps.append(Step(tuple(attends), tuple(moves)))
    return Plan("double-ring", work, ranks, partition, pass_, (), (), tuple(steps))
