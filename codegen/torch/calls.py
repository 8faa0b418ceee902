"""cutter(plan)   cuts the rectangles of a plan into kernel calls, as lists of integers.

    call   [band, rows, columns, heads, KV heads]    [first, end] or [first, end, step] each,
           [] for all
    band   False: every row sees every column; True: causal; [lo, hi]: row r sees r + lo..r + hi

Rows, columns and heads count from the start of a rectangle's blocks, laid end to end.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from ringloom.codegen.steps import Lists, Parts, Rectangle
from ringloom.planner.ir import Plan
from ringloom.planner.kernel_calls import rectangle_calls
from ringloom.planner.partitions import shift_ranges


def cutter(plan: Plan) -> Parts:
    """Returns a function that cuts rectangles of query and key blocks into kernel calls.

    Rectangles with the same positions, as on ranks that share the heads, are cut only once.
    """
    work, (q, kv) = plan.workload, (plan.partition.q, plan.partition.kv)
    mask = work.mask.region().pieces
    rows = [shift_ranges(positions, work.offset) for positions in q.chunks]

    def cut_chunks(queries: Sequence[int], keys: Sequence[int]) -> Lists:
        sides = [rows[n] for n in queries], [kv.chunks[n] for n in keys]
        height, width = (sum(len(r) for ranges in side for r in ranges) for side in sides)
        calls = rectangle_calls(*sides, mask, masks=False)
        return [[band, ends_of(at, height), ends_of(to, width)] for at, to, band in calls]

    def cut(rectangles: Sequence[Rectangle]) -> Iterator[Lists]:
        chunks = q.chunk.tolist(), kv.chunk.tolist()
        keys_of_calls = [
            tuple(tuple(chunk[n] for n in side) for chunk, side in zip(chunks, x, strict=True))
            for x in rectangles
        ]
        calls = {x: cut_chunks(*x) for x in dict.fromkeys(keys_of_calls)}
        for (queries, keys), x in zip(rectangles, keys_of_calls, strict=True):
            slices = q.blocks[queries[0]].heads, kv.blocks[keys[0]].heads
            heads = [*shared_heads(*slices, work.group)]
            yield [[*call, *pair] for call in calls[x] for pair in heads]

    return cut


def shared_heads(q: range, kv: range, group: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yields the query heads and KV heads that two blocks share, as slices for one call each.

    Kernels need the same number of query heads per KV head, so a group of which the slice has only
    a part gets its own call.
    """
    first, last = max(q.start, kv.start * group), min(q.stop, kv.stop * group)
    whole = min(last, -(-first // group) * group)  # where the first whole group begins
    for a, b in pairwise((first, whole, max(whole, last // group * group), last)):
        if a < b:
            kv_heads = range(a // group - kv.start, -(-b // group) - kv.start)
            yield ends_of(range(a - q.start, b - q.start), len(q)), ends_of(kv_heads, len(kv))


def ends_of(numbers: range, size: int) -> list[int]:
    """Returns [first, end] of rows or heads, [first, end, step] if strided, [] if all."""
    if numbers.step == 1:
        ends = [numbers.start, numbers.stop]
        return [] if ends == [0, size] else ends
    return [numbers.start, numbers.stop, numbers.step]
