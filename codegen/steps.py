"""tables(forward, backward, parts)   what each rank does in each pass, as lists for interpreters.

    tables    {"QUERIES": blocks, "KEYS": blocks, "KEPT": [places of rank 0, places of rank 1 ...],
               "FORWARD": [steps of rank 0, steps of rank 1 ...], "BACKWARD": the same, or []}
    block     [owner, [first row, end] in its shard, [first head, end] if these are not all]
    step      [sends, receives, attends, drops]     in this order; as many steps on all ranks
    send      [to, tensor, block, finished]         a receive: [from, tensor, block, finished]
    attend    [query blocks, key blocks, parts]
    drop      [tensor, block]                       a copy that was read for the last time
    place     [tensor, block]                       what the forward pass leaves to the backward one

A sum is finished (1) if nothing will be added to it. `parts` makes of rectangles of blocks what a
target runs: kernel calls in torch, live tiles in JAX. What is sent leaves before a rank attends,
and what it receives is there afterwards.

Where the forward pass leaves OUT for the backward pass, STATS travel with DOUT instead: two numbers
per token and head, and nobody has to keep OUT.
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
LEFT = ("Q", "KV", "OUT")  # what a forward pass can leave on other ranks


def tables(forward: Plan, backward: Plan | None, parts: Callable[[Plan], Parts]) -> Tables:
    """The tables of both passes; PlanError for initial copies that no program can have."""
    refuse(forward, backward)
    backward = backward and with_statistics(backward)
    sides, work, keeps = forward.partition, forward.workload, kept(backward, forward.ranks)
    return {
        "QUERIES": blocks(sides.q, work.heads),
        "KEYS": blocks(sides.kv, work.kv_heads),
        "KEPT": keeps,
        "FORWARD": steps(forward, keeps, parts(forward)),
        "BACKWARD": steps(backward, keeps, parts(backward)) if backward else [],
    }


def refuse(forward: Plan, backward: Plan | None) -> None:
    """Raise PlanError for plans whose initial copies no program can have."""
    if forward.start:
        raise PlanError(
            f"{forward.start[0].tensors[0]} is on other ranks before the forward pass begins,"
            " but a program starts with shards alone"
        )
    for held in backward.start if backward else ():
        if tensor := next((t for t in held.tensors if t not in LEFT), None):
            raise PlanError(f"{tensor} is on other ranks, but no forward pass leaves it there")


def with_statistics(plan: Plan) -> Plan:
    """The plan with STATS beside DOUT in messages, instead of OUT on other ranks."""
    if not any("OUT" in held.tensors for held in plan.start):
        return plan
    others = ((held, tuple(t for t in held.tensors if t != "OUT")) for held in plan.start)
    start = tuple(replace(held, tensors=left) for held, left in others if left)

    def both(move: Move) -> Move:
        alone = "DOUT" in move.tensors and "STATS" not in move.tensors
        return replace(move, tensors=(*move.tensors, "STATS")) if alone else move

    changed = (Step(step.attends, tuple(map(both, step.moves))) for step in plan.steps)
    return replace(plan, start=start, steps=tuple(changed))


def kept(backward: Plan | None, ranks: int) -> Lists:
    """The places of all that each rank keeps of the forward pass, beside its own blocks."""
    copies: Lists = [[] for _ in range(ranks)]
    for held in () if backward is None else backward.start:
        assert backward
        owners = backward.side(held.tensors[0]).owners.tolist()
        for block, rank in zip(*(x.tolist() for x in held.flat()), strict=True):
            copies[rank] += [[x, block] for x in held.tensors if owners[block] != rank]
    return copies


def blocks(side: Side, heads: int) -> Lists:
    """Where each block is in the shard of its owner."""
    shards: list[dict[int, Lists]] = [{} for _ in range(max(side.owners.tolist(), default=0) + 1)]
    made = list[Lists]()
    for block, chunk, size in zip(
        side.blocks, side.chunk.tolist(), side.sizes.tolist(), strict=True
    ):
        shard = shards[block.home]
        first = next(reversed(shard.values()), [0, 0])[1]
        rows = shard.setdefault(chunk, [first, first + size])
        part = [] if len(block.heads) == heads else [[block.heads.start, block.heads.stop]]
        made.append([block.home, rows, *part])
    return made


def steps(plan: Plan, keeps: Lists, parts: Parts) -> Lists:
    """The steps of each rank; `keeps`: the places of copies that must stay, of each rank."""
    count = max(1, len(plan.steps))  # none where nobody sees anything
    table: Lists = [[[[], [], [], []] for _ in range(count)] for _ in range(plan.ranks)]
    for number, move in plan.moves():
        columns = move.src.tolist(), move.dst.tolist(), move.blocks.tolist()
        finished = reaches_owner(plan, number, move).astype(int).tolist()
        for src, dst, row, done in zip(*columns, finished, strict=True):
            for tensor, block in ((t, b) for t in move.tensors for b in row if b >= 0):
                table[src][number][0].append([dst, tensor, block, done])
                table[dst][number][1].append([src, tensor, block, done])
    places, attended = [*zip(*rectangles(plan), strict=True)] or ((), ())
    for (rank, number), (q, kv), made in zip(places, attended, parts(attended), strict=True):
        table[rank][number][2].append([[*q], [*kv], made])
    for tensor in INPUTS[plan.pass_]:
        for rank, block, step in last_reads(plan, tensor):
            if [tensor, block] not in keeps[rank]:
                table[rank][step][3].append([tensor, block])
    return table


def rectangles(plan: Plan) -> Iterator[tuple[tuple[int, int], Rectangle]]:
    """((rank, step), blocks) of each rectangle.

    Blocks follow as their first positions do: so few calls take them.
    """
    q, kv = begins(plan.partition.q), begins(plan.partition.kv)
    for number, attend in plan.attends():
        columns = attend.rank.tolist(), attend.q.tolist(), attend.kv.tolist()
        for rank, queries, keys in zip(*columns, strict=True):
            yield (rank, number), (in_order(queries, q), in_order(keys, kv))


def begins(side: Side) -> list[int]:
    """The first position of each block."""
    first = [min((part[0] for part in chunk), default=0) for chunk in side.chunks]
    return [first[n] for n in side.chunk.tolist()]


def in_order(numbers: Iterable[int], first: Sequence[int]) -> tuple[int, ...]:
    """Blocks in the order of their first positions; -1 is none."""
    return tuple(sorted((n for n in numbers if n >= 0), key=first.__getitem__))


def last_reads(plan: Plan, tensor: str) -> Iterator[tuple[int, int, int]]:
    """(rank, block, step) of the last use of each copy that came in this pass."""
    received, last = lifetimes(plan, tensor)
    for rank, block in np.argwhere(received >= 0).tolist():
        yield rank, block, int(max(received[rank, block], last[rank, block]))
