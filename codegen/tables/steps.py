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

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.masks import boxes
from planner.analysis.liveness import lifetimes
from planner.analysis.messages import brings_home
from planner.errors import PlanError
from planner.ir import INPUTS, Plan
from planner.kernel_calls.runs import Band, BandCall, Run, box_calls
from planner.partitions import Ranges, Side, merge

Lists = list[Any]
Arrays = dict[str, NDArray[Any]]
STRIP = 1024  # rows of a window at least, as a call takes them
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
    """[home, [first row, end] in the shard of the home, [first head, end] if not all of them]."""
    shards: list[dict[int, Lists]] = [{} for _ in range(max(side.homes.tolist(), default=0) + 1)]
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
        finished = brings_home(plan, number, move).astype(int).tolist()
        for src, dst, row, done in zip(*columns, finished, strict=True):
            for tensor, block in ((t, b) for t in move.tensors for b in row if b >= 0):
                table[src][number][0].append([dst, tensor, block, done])
                table[dst][number][1].append([src, tensor, block, done])
    cut = cutter(plan)
    for number, attend in plan.attends():
        for rank, q, kv in zip(
            attend.rank.tolist(), attend.q.tolist(), attend.kv.tolist(), strict=True
        ):
            queries, keys = (tuple(b for b in row if b >= 0) for row in (q, kv))
            table[rank][number][2].append([[*queries], [*keys], cut(queries, keys)])
    for tensor in INPUTS[plan.pass_]:
        for rank, block, step in last_reads(plan, tensor):
            if [tensor, block] not in keeps[rank]:
                table[rank][step][3].append([tensor, block])
    return [[step for step in rank if any(step)] for rank in table]


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
    mask = np.array(boxes(work, free=False), np.int64).reshape(-1, 6)
    q_runs, kv_runs = ([runs(x) for x in side.chunks] for side in (sides.q, sides.kv))

    def cut(queries: tuple[int, ...], keys: tuple[int, ...]) -> Lists:
        q = laid(sides.q, q_runs, queries, work.offset)
        kv = laid(sides.kv, kv_runs, keys, 0)
        heads = shared_heads(
            sides.q.blocks[queries[0]].heads, sides.kv.blocks[keys[0]].heads, work.group
        )
        size = sum(sides.q.sizes[[*queries]]), sum(sides.kv.sizes[[*keys]])
        return [
            short(band, [part(rows, size[0]), part(cols, size[1]), *pair])
            for i in q
            for j in kv
            for box in near(mask, i.positions, j.positions)
            for call in box_calls(i, j, box)
            for rows, cols, band in strips(call)
            for pair in heads
        ]

    return cut


def runs(positions: Ranges) -> list[Run]:
    """The rows of a block in which each of its ranges lies, cut where these do not go on evenly.

    The tokens of a block are in ascending order, so ranges that interlace share out the rows.
    """
    tokens, made = merge(positions), list[Run]()
    for x in filter(len, positions):
        rows, first = np.searchsorted(tokens, x), 0
        steps = np.diff(rows)
        while first < len(x):
            stride = int(steps[first]) if first < len(steps) else 1
            uneven = np.flatnonzero(steps[first:] != stride)
            end = first + (int(uneven[0]) if len(uneven) else len(steps) - first) + 1
            part, row = x[first:end], int(rows[first])
            step = x.step if len(part) > 1 else 1
            at = range(row, row + stride * len(part), stride)
            made.append(Run(at, range(part[0], part[-1] + 1, step)))
            first = end
    return sorted(made, key=lambda run: run.at[0])


def laid(side: Side, known: Sequence[list[Run]], numbers: Sequence[int], offset: int) -> list[Run]:
    """The runs of blocks laid one after the other, joined where one goes on with another."""
    joined, first = list[Run](), 0
    for number in numbers:
        for at, x in known[side.chunk[number]]:
            rows = range(first + at.start, first + at.stop, at.step)
            x = range(x.start + offset, x.stop + offset, x.step)
            if joined and follows(joined[-1].at, rows) and follows(joined[-1].positions, x):
                before = joined.pop()
                rows = range(before.at.start, rows.stop, rows.step)
                x = range(before.positions.start, x.stop, x.step)
            joined.append(Run(rows, x))
        first += int(side.sizes[number])
    return joined


def strips(call: BandCall) -> Iterator[tuple[range, range, Band]]:
    """A window cut into as many rows at a time as it is wide, where a kernel needs it as a bias."""
    rows, cols, band = call
    if isinstance(band, bool):
        yield call
        return
    lo, hi = band
    for top in range(0, len(rows), step := max(STRIP, hi - lo + 1)):
        bottom = min(len(rows), top + step)
        left, right = max(0, top + lo), min(len(cols), bottom + hi)
        yield rows[top:bottom], cols[left:right], (lo + top - left, hi + top - left)


def follows(before: range, x: range) -> bool:
    """True if a range goes on where another one ended."""
    return before.step == x.step and before[-1] + x.step == x.start


def near(mask: Any, i: range, j: range) -> list[tuple[int, ...]]:
    """The boxes that hold some pair between the first and the last of two ranges."""
    i0, i1, j0, j1, lo, hi = mask.T
    inside = (i0 <= i[-1]) & (i1 > i[0]) & (j0 <= j[-1]) & (j1 > j[0])
    inside &= (lo <= j[-1] - i[0]) & (hi >= j[0] - i[-1])
    return [tuple(box) for box in mask[inside].tolist()]


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
