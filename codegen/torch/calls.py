"""cutter(plan)   cuts the rectangles of a plan into kernel calls, as lists of integers.

    call   [band, rows, columns, heads, KV heads]    [first, end] or [first, end, step] each,
           [] for all
    band   False: every row sees every column; True: causal; [lo, hi]: row r sees r + lo..r + hi

Rows, columns and heads count from the first one of a rectangle's blocks, laid one after the other.
"""

from collections.abc import Iterator
from itertools import pairwise

from codegen.steps import Lists, Parts
from planner.ir import Plan
from planner.kernel_calls import rectangle_calls
from planner.partitions import shifted


def cutter(plan: Plan) -> Parts:
    """A function that cuts the rectangle of some query and key blocks into kernel calls."""
    work, sides = plan.workload, plan.partition
    mask = work.mask.region().pieces

    def cut(queries: tuple[int, ...], keys: tuple[int, ...]) -> Lists:
        q, kv = [sides.q.blocks[n] for n in queries], [sides.kv.blocks[n] for n in keys]
        rows = [shifted(block.positions, work.offset) for block in q]
        columns = [block.positions for block in kv]
        size = sum(block.size for block in q), sum(block.size for block in kv)
        return [
            [band, part(at, size[0]), part(to, size[1]), *pair]
            for at, to, band in rectangle_calls(rows, columns, mask, masks=False)
            for pair in shared_heads(q[0].heads, kv[0].heads, work.group)
        ]

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
