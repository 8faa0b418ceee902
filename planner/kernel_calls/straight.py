"""Causal rectangles of ranges whose diagonal is one straight line, without looking at every row.

Row r of some ranges of queries sees the keys up to its own position. With one step for all ranges,
between rows at which a range of either side begins each row sees one key more than the one before,
and from where the keys have a gap on as many. So a few corners of that line tell all of it.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from planner.kernel_calls.runs import Call, ascend, triangle


def straight(q: Sequence[range], kv: Sequence[range]) -> list[Call] | None:
    """Returns the calls of ranges in turn, None where rows do not see one key more each.

    Some first rows may see nothing, and some last ones as many keys as the row before.
    """
    steps = {part.step for part in (*q, *kv) if len(part) > 1}
    if len(steps) > 1 or not (ascend(q) and ascend(kv)):
        return None
    step, rows = max(steps, default=1), sum(map(len, q))
    starts = [keys.start for keys in kv]
    before = [*accumulate(map(len, kv), initial=0)]

    def count(position: int) -> int:
        """Keys up to a position."""
        last = bisect_right(starts, position) - 1
        if last < 0:
            return 0
        return min(before[last] + (position - starts[last]) // step + 1, before[last + 1])

    seen = {row: count(position) for row, position in _corners(q, starts, step)}
    top = min((row for row, keys in seen.items() if keys), default=rows)
    if top == rows:
        return []
    low, high = seen[top], seen[rows - 1]
    if any(n != min(low + row - top, high) for row, n in seen.items() if row >= top):
        return None
    if low == high:
        return [Call(range(top, rows), range(high), False)]
    return [*triangle(range(top, rows), range(high), low - 1)]


def _corners(q: Sequence[range], starts: list[int], step: int) -> Iterator[tuple[int, int]]:
    """Yields (row, position) of the first row that sees something of each range, of the row before
    it, and of both ends of each range of queries."""
    for part, first in zip(q, accumulate(map(len, q), initial=0), strict=False):
        inside = starts[bisect_right(starts, part.start) : bisect_right(starts, part[-1])]
        begins = {-(-(start - part.start) // step) for start in inside}
        rows = {0, len(part) - 1} | begins | {row - 1 for row in begins}
        yield from ((first + row, part[row]) for row in rows)
