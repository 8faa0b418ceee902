"""tables(forward, backward, parts)   lists the work of each rank in each pass, for interpreters.

    tables    {"QUERIES": blocks, "KEYS": blocks, "KEPT": [copies of rank 0, copies of rank 1 ...],
               "FORWARD": [steps of rank 0, steps of rank 1 ...], "BACKWARD": the same, or []}
    block     [owner, [first row, end] in its shard, [first head, end] unless it has all heads]
    step      [sends, receives, attends, drops]     in this order; equally many steps on all ranks
    send      [to, tensor, block, finished]         a receive: [from, tensor, block, finished]
    attend    [query blocks, key blocks, parts]
    drop      [tensor, block]                       a copy that no later step reads
    copy      [tensor, block]                       kept by the forward pass for the backward pass

A sum is finished (1) if nothing is added to it later. `parts` converts rectangles of blocks to the
calls of a target: kernel calls in torch, live tiles in JAX. A rank sends before it attends, and can
read received blocks afterwards.

If the forward pass leaves OUT for the backward pass, STATS are sent with DOUT instead: two numbers
per token and head, so that no rank has to keep OUT.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.analysis.liveness import lifetimes
from ringloom.planner.analysis.messages import reaches_owner
from ringloom.planner.errors import PlanError
from ringloom.planner.ir import INPUTS, Move, Plan, Step
from ringloom.planner.partitions import Side

Lists = list[Any]
Tables = dict[str, Any]
Arrays = dict[str, NDArray[Any]]
Rectangle = tuple[tuple[int, ...], tuple[int, ...]]  # query blocks and key blocks
Parts = Callable[[Sequence[Rectangle]], Iterable[Lists]]
KEEPABLE = ("Q", "KV", "OUT")  # tensors that a forward pass can leave on other ranks


def tables(forward: Plan, backward: Plan | None, parts: Callable[[Plan], Parts]) -> Tables:
    """Returns the tables of both passes; raises PlanError for impossible initial copies."""
    refuse_initial_copies(forward, backward)
    backward = backward and with_statistics(backward)
    sides, work, kept = forward.partition, forward.workload, kept_copies(backward, forward.ranks)
    return {
        "QUERIES": locate_blocks(sides.q, work.heads),
        "KEYS": locate_blocks(sides.kv, work.kv_heads),
        "KEPT": kept,
        "FORWARD": list_steps(forward, kept, parts(forward)),
        "BACKWARD": list_steps(backward, kept, parts(backward)) if backward else [],
    }


def refuse_initial_copies(forward: Plan, backward: Plan | None) -> None:
    """Raises PlanError for plans whose initial copies no program can have."""
    if forward.start:
        raise PlanError(
            f"{forward.start[0].tensors[0]} is on other ranks before the forward pass begins,"
            " but a program starts with only each rank's own shard"
        )
    for held in backward.start if backward else ():
        if tensor := next((t for t in held.tensors if t not in KEEPABLE), None):
            raise PlanError(f"{tensor} is on other ranks, but no forward pass leaves it there")


def with_statistics(plan: Plan) -> Plan:
    """Replaces initial copies of OUT by STATS, which are sent with DOUT."""
    if not any("OUT" in held.tensors for held in plan.start):
        return plan
    without_out = ((held, tuple(t for t in held.tensors if t != "OUT")) for held in plan.start)
    start = tuple(replace(held, tensors=tensors) for held, tensors in without_out if tensors)

    def add_stats(move: Move) -> Move:
        lacks_stats = "DOUT" in move.tensors and "STATS" not in move.tensors
        return replace(move, tensors=(*move.tensors, "STATS")) if lacks_stats else move

    steps = (Step(step.attends, tuple(map(add_stats, step.moves))) for step in plan.steps)
    return replace(plan, start=start, steps=tuple(steps))


def kept_copies(backward: Plan | None, ranks: int) -> Lists:
    """Lists the copies that each rank keeps from the forward pass, without its own blocks."""
    copies: Lists = [[] for _ in range(ranks)]
    for held in () if backward is None else backward.start:
        assert backward
        owners = backward.side(held.tensors[0]).owners.tolist()
        for block, rank in zip(*(x.tolist() for x in held.flat()), strict=True):
            copies[rank] += [[x, block] for x in held.tensors if owners[block] != rank]
    return copies


def locate_blocks(side: Side, heads: int) -> Lists:
    """Lists the place of each block in the shard of its owner."""
    shards: list[dict[int, Lists]] = [{} for _ in range(max(side.owners.tolist(), default=0) + 1)]
    places = list[Lists]()
    for block, chunk, size in zip(
        side.blocks, side.chunk.tolist(), side.sizes.tolist(), strict=True
    ):
        shard = shards[block.home]
        first = next(reversed(shard.values()), [0, 0])[1]
        rows = shard.setdefault(chunk, [first, first + size])
        part = [] if len(block.heads) == heads else [[block.heads.start, block.heads.stop]]
        places.append([block.home, rows, *part])
    return places


def list_steps(plan: Plan, kept: Lists, parts: Parts) -> Lists:
    """Lists the steps of each rank; `kept`: the copies that must stay on each rank."""
    count = max(1, len(plan.steps))  # a mask without pairs has no steps
    table: Lists = [[[[], [], [], []] for _ in range(count)] for _ in range(plan.ranks)]
    for number, move in plan.moves():
        columns = move.src.tolist(), move.dst.tolist(), move.blocks.tolist()
        finished = reaches_owner(plan, number, move).astype(int).tolist()
        for src, dst, row, done in zip(*columns, finished, strict=True):
            for tensor, block in ((t, b) for t in move.tensors for b in row if b >= 0):
                table[src][number][0].append([dst, tensor, block, done])
                table[dst][number][1].append([src, tensor, block, done])
    places, blocks = [*zip(*rectangles(plan), strict=True)] or ((), ())
    for (rank, number), (q, kv), calls in zip(places, blocks, parts(blocks), strict=True):
        table[rank][number][2].append([[*q], [*kv], calls])
    for tensor in INPUTS[plan.pass_]:
        for rank, block, step in last_reads(plan, tensor):
            if [tensor, block] not in kept[rank]:
                table[rank][step][3].append([tensor, block])
    return table


def rectangles(plan: Plan) -> Iterator[tuple[tuple[int, int], Rectangle]]:
    """Yields (rank, step) and the blocks of each rectangle.

    Blocks are sorted by their first positions, which takes fewer kernel calls.
    """
    q, kv = first_positions(plan.partition.q), first_positions(plan.partition.kv)
    for number, attend in plan.attends():
        columns = attend.rank.tolist(), attend.q.tolist(), attend.kv.tolist()
        for rank, queries, keys in zip(*columns, strict=True):
            yield (rank, number), (sort_blocks(queries, q), sort_blocks(keys, kv))


def first_positions(side: Side) -> list[int]:
    """Returns the first position of each block."""
    first = [min((part[0] for part in chunk), default=0) for chunk in side.chunks]
    return [first[n] for n in side.chunk.tolist()]


def sort_blocks(blocks: Iterable[int], first: Sequence[int]) -> tuple[int, ...]:
    """Sorts blocks by their first positions; -1 is no block."""
    return tuple(sorted((n for n in blocks if n >= 0), key=first.__getitem__))


def last_reads(plan: Plan, tensor: str) -> Iterator[tuple[int, int, int]]:
    """Yields (rank, block, step) of the last use of each copy that arrived in this pass."""
    received, last = lifetimes(plan, tensor)
    for rank, block in np.argwhere(received >= 0).tolist():
        yield rank, block, int(max(received[rank, block], last[rank, block]))
