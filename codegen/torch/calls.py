"""cutter(plan)   cuts the rectangles of a plan into kernel calls, as lists of integers.

    call   [band, rows, columns, heads, KV heads]    [first, end] or [first, end, step] each,
           [] for all
    band   False: every row sees every column; True: causal; [lo, hi]: row r sees r + lo..r + hi

Rows, columns and heads count from the first one of a rectangle's blocks, laid one after the other.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from ringloom.codegen.steps import Lists, Parts, Rectangle
from ringloom.planner.ir import Plan
from ringloom.planner.kernel_calls import rectangle_calls
from ringloom.planner.partitions import shift_ranges


def cutter(plan: Plan) -> Parts:
    """A function that cuts rectangles of query and key blocks into kernel calls.

    Rectangles of the same positions, as ranks have that share out heads, are cut once.
    """
    work, (q, kv) = plan.workload, (plan.partition.q, plan.partition.kv)
    mask = work.mask.region().pieces
    rows = [shift_ranges(positions, work.offset) for positions in q.chunks]

    def bands(queries: Sequence[int], keys: Sequence[int]) -> Lists:
        own, other = [rows[n] for n in queries], [kv.chunks[n] for n in keys]
        height, width = (sum(len(part) for x in side for part in x) for side in (own, other))
        calls = rectangle_calls(own, other, mask, masks=False)
        return [[band, part(at, height), part(to, width)] for at, to, band in calls]

    def cut(rectangles: Sequence[Rectangle]) -> Iterator[Lists]:
        chunks = q.chunk.tolist(), kv.chunk.tolist()
        places = [
            tuple(tuple(chunk[n] for n in side) for chunk, side in zip(chunks, x, strict=True))
            for x in rectangles
        ]
        made = {x: bands(*x) for x in dict.fromkeys(places)}
        for (queries, keys), x in zip(rectangles, places, strict=True):
            slices = q.blocks[queries[0]].heads, kv.blocks[keys[0]].heads
            heads = [*shared_heads(*slices, work.group)]
            yield [[*call, *pair] for call in made[x] for pair in heads]

    return cut


def shared_heads(q: range, kv: range, group: int) -> Iterator[tuple[list[int], list[int]]]:
    """Heads that query blocks and key blocks share, as many per KV head.

    Kernels take as many query heads for each KV head, so a group that a slice begins or ends in
    goes on its own.
    """
    first, last = max(q.start, kv.start * group), min(q.stop, kv.stop * group)
    begun = min(last, -(-first // group) * group)  # where the first whole group begins
    for a, b in pairwise((first, begun, max(begun, last // group * group), last)):
        if a < b:
            of_kv = range(a // group - kv.start, -(-b // group) - kv.start)
            yield part(range(a - q.start, b - q.start), len(q)), part(of_kv, len(kv))


def part(numbers: range, size: int) -> list[int]:
    """Rows or heads as first, end and, if it is not 1, step; [] for everything."""
    if numbers.step == 1:
        ends = [numbers.start, numbers.stop]
        return [] if ends == [0, size] else ends
    return [numbers.start, numbers.stop, numbers.step]
