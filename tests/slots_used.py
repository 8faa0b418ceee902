"""Slots that virtual ranks use while they run, counted from what is in their memories."""

from collections import Counter
from itertools import product

from ringloom.planner.analysis.tables import attended_blocks
from ringloom.planner.ir import ACCUMULATORS, Plan
from ringloom.runtimes.arrays import Array
from ringloom.runtimes.reference import dense, oracle
from ringloom.runtimes.reference.virtual_ranks import VirtualRanks


def sharded(plan: Plan, *inputs: Array) -> VirtualRanks:
    """Virtual ranks with their shards of q, k, v and, for a backward pass, of dout."""
    ranks = VirtualRanks(plan)
    q, k, v, *dout = inputs
    given = {"Q": (q,), "KV": (k, v), "DOUT": tuple(dout)}
    oracle.shard(ranks, given, *(dense.forward(plan.workload, q, k, v) if dout else ()))
    return ranks


def used(ranks: VirtualRanks) -> Counter[str]:
    """Run a plan; returns the most copies and sums of what others own on a rank, by tensor.

    To what it has at first in a step come sums that attends begin, and all blocks that it receives.
    """
    plan, most = ranks.plan, Counter[str]()
    for number, step in enumerate(plan.steps):
        slots, sums = Counter[tuple[int, str]](), set[tuple[int, str, int]]()
        for memory in ranks.memory:
            sums |= {(memory.number, *place) for place in memory.sums}
            for tensor, block in (*memory.inputs, *memory.sums):
                slots[memory.number, tensor] += plan.side(tensor).owners[block] != memory.number
        for move in step.moves:
            for block, src, dst in zip(*move.flat(), strict=True):
                slots.update((dst, tensor) for tensor in move.tensors)
                sums -= {(src, tensor, block) for tensor in move.tensors}
        for node, tensor in product(step.attends, ACCUMULATORS[plan.pass_]):
            for rank, blocks in zip(node.rank, attended_blocks(node, tensor), strict=True):
                begun = {(rank, tensor, block) for block in blocks[blocks >= 0]} - sums
                sums |= begun
                slots[rank, tensor] += sum(plan.side(tensor).owners[b] != rank for *_, b in begun)
        ranks.advance(number)
        for (_, tensor), count in slots.items():
            most[tensor] = max(most[tensor], count)
    return most


def fits(plan: Plan, *inputs: Array) -> bool:
    """True if no rank uses more slots than the plan's buffers."""
    slots = used(sharded(plan, *inputs))
    return all(slots[tensor] <= allowed for tensor, allowed in plan.buffers)
