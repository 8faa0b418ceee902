"""steps(plan)   what each rank does in each step, as nested lists of names and small integers.

    tables     [steps of rank 0, steps of rank 1 ...]
    step       [sends, receives, rectangles, drops]
    send       [to, tensor, block, finished]        a receive: [from, tensor, block, finished]
    rectangle  [query blocks, key blocks, [call ...]]
    call       [band, rows, columns, heads, KV heads]    [first, end] or [first, end, step] each,
               [] for all; the last ones are left out where they are all
    band       False: every row sees every column; True: causal; [lo, hi]: row r sees r + lo..r + hi
    drop       [tensor, block]    a copy that was read for the last time

A sum is finished (1) if nothing will be added to it. Rows, columns and heads count from the first
one of the rectangle's blocks, laid one after the other.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.analysis.liveness import lifetimes
from planner.analysis.messages import reaches_owner
from planner.errors import PlanError
from planner.ir import INPUTS, Plan
from planner.kernel_calls import rectangle_calls
from planner.partitions import Side, shifted

Lists = list[Any]
Arrays = dict[str, NDArray[Any]]
LEFT = ("Q", "KV", "OUT")  # what a forward pass can leave on other ranks


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


def kept(backward: Plan | None, ranks: int) -> Lists:
    """[tensor, block] of all that each rank keeps of the forward pass."""
    copies: Lists = [[] for _ in range(ranks)]
    for held in backward.start if backward else ():
        for block, rank in zip(*(x.tolist() for x in held.flat()), strict=True):
            copies[rank] += [[tensor, block] for tensor in held.tensors]
    return copies


def blocks(side: Side, heads: int) -> Lists:
    """[owner, [first row, end] in its shard, [first head, end] if not all of them]."""
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


def steps(plan: Plan, keeps: Lists) -> Lists:
    """The steps of each rank; `keeps`: copies that must stay, [tensor, block] of each rank."""
    table: Lists = [[[[], [], [], []] for _ in plan.steps] for _ in range(plan.ranks)]
    for number, move in plan.moves():
        columns = move.src.tolist(), move.dst.tolist(), move.blocks.tolist()
        finished = reaches_owner(plan, number, move).astype(int).tolist()
        for src, dst, row, done in zip(*columns, finished, strict=True):
            for tensor, block in ((t, b) for t in move.tensors for b in row if b >= 0):
                table[src][number][0].append([dst, tensor, block, done])
                table[dst][number][1].append([src, tensor, block, done])
    cut = cutter(plan)
    for number, attend in plan.attends():
        for rank, q, kv in zip(
            attend.rank.tolist(), attend.q.tolist(), attend.kv.tolist(), strict=True
        ):
            queries, keys = by_position(plan.partition.q, q), by_position(plan.partition.kv, kv)
            table[rank][number][2].append([[*queries], [*keys], cut(queries, keys)])
    for tensor in INPUTS[plan.pass_]:
        for rank, block, step in last_reads(plan, tensor):
            if [tensor, block] not in keeps[rank]:
                table[rank][step][3].append([tensor, block])
    return [[step for step in rank if any(step)] for rank in table]


def by_position(side: Side, numbers: Iterable[int]) -> tuple[int, ...]:
    """The blocks of some numbers, as their first positions follow: so few calls take them."""
    blocks = {n: side.blocks[n].positions for n in numbers if n >= 0}
    return tuple(sorted(blocks, key=lambda n: min((p[0] for p in blocks[n]), default=0)))


def last_reads(plan: Plan, tensor: str) -> Iterator[tuple[int, int, int]]:
    """(rank, block, step) of the last use of each copy that came in this pass."""
    received, last = lifetimes(plan, tensor)
    if tensor == "DOUT":  # STATS are computed of it
        last = np.maximum(last, lifetimes(plan, "STATS")[1])
    for rank, block in np.argwhere(received >= 0).tolist():
        yield rank, block, int(max(received[rank, block], last[rank, block]))


def cutter(plan: Plan) -> Callable[[tuple[int, ...], tuple[int, ...]], Lists]:
    """A function that cuts the rectangle of some query and key blocks into kernel calls."""
    work, sides = plan.workload, plan.partition
    mask = work.mask.region().pieces

    def cut(queries: tuple[int, ...], keys: tuple[int, ...]) -> Lists:
        q, kv = [sides.q.blocks[n] for n in queries], [sides.kv.blocks[n] for n in keys]
        rows = [shifted(block.positions, work.offset) for block in q]
        columns = [block.positions for block in kv]
        heads = shared_heads(q[0].heads, kv[0].heads, work.group)
        size = sum(block.size for block in q), sum(block.size for block in kv)
        return [
            short(band, [part(at, size[0]), part(to, size[1]), *pair])
            for at, to, band in rectangle_calls(rows, columns, mask, masks=False)
            for pair in heads
        ]

    return cut


def shared_heads(q: range, kv: range, group: int) -> list[tuple[list[int], list[int]]]:
    """Heads that query blocks and key blocks share, as many per KV head; [] where it is all.

    Kernels take as many query heads for each KV head, so a group that a slice begins or ends in
    goes on its own.
    """
    first, last = max(q.start, kv.start * group), min(q.stop, kv.stop * group)
    begun = min(last, -(-first // group) * group)  # where the first whole group begins
    cuts = (first, begun, max(begun, last // group * group), last)
    return [
        (
            _ends(a - q.start, b - q.start, len(q)),
            _ends(a // group - kv.start, -(-b // group) - kv.start, len(kv)),
        )
        for a, b in pairwise(cuts)
        if a < b
    ]


def part(rows: range, size: int) -> list[int]:
    """Rows as first, end and, if it is not 1, step; [] for everything."""
    if rows.step == 1:
        return _ends(rows.start, rows.stop, size)
    return [rows.start, rows.stop, rows.step]


def _ends(first: int, end: int, size: int) -> list[int]:
    return [] if (first, end) == (0, size) else [first, end]


def short(band: Any, parts: list[list[int]]) -> Lists:
    """A call without the last parts that are everything."""
    while parts and not parts[-1]:
        parts.pop()
    return [[*band] if isinstance(band, tuple) else band, *parts]
