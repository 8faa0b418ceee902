"""The kernel calls of a rectangle: what a program makes of some queries that meet some keys.

    full     every row sees every column
    causal   as many rows as columns, row r sees columns 0..r: what kernels call is_causal
    masked   rows under an explicit mask, at most TILE of them

Kernels know full and causal, and no row of a call may see nothing. So a rectangle is cut: a
straight diagonal takes a full call for what every row sees and a causal one for the rest, and a
strictly causal tile loses its first row and its last column. Under other masks, strips of rows see
a full part in their middle and masked parts at its sides; where that would be more work than one
masked call per strip, it is one masked call per strip.

Programs are written with these very cuts; here they are only counted.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.partitions import Ranges, merge
from simulator.calls.ramps import ramp

Ints = NDArray[np.int64]
Positions = range | Ints | Ranges  # ascending, but where several blocks come one after the other
Cutter = Callable[[Any, Any], "list[Call] | None"]
Kind = Literal["full", "causal", "masked"]
TILE = 512  # rows of a masked call: bounds its mask, and the work done on what it hides
EACH = 20_000  # pairs that one call more is worth


class Call(NamedTuple):
    """One kernel call: its rows and columns in its rectangle, how many rows, how masked.

    `rows` and `columns` are (first, last + 1); `height` is less than their number where rows that
    see nothing lie between others.
    """

    rows: tuple[int, int]
    columns: tuple[int, int]
    height: int
    kind: Kind

    @property
    def width(self) -> int:
        """How many columns."""
        return self.columns[1] - self.columns[0]


def rectangle_calls(
    q: Sequence[Ranges], kv: Sequence[Ranges], boxes: Ints, plain: bool
) -> list[Call]:
    """The calls of a rectangle of blocks under a mask.

    q, kv: positions of each block, queries aligned with the keys, blocks in the order of their
    first positions. boxes: [n, 6], the mask as disjoint boxes cut by bands. plain: the mask is
    causal and no block has gaps. Blocks that interleave are taken one by one, and so are plain
    ones whose diagonal is not one straight line.
    """
    join: Callable[[Sequence[Ranges]], Positions] = in_turn if plain else joined
    cutter: Cutter = causal_calls if plain else lambda q, kv: mask_calls(_array(q), kv, boxes)
    rows, columns = [join(q)], [join(kv)]
    found = list(_parts(rows, columns, cutter))
    if None in found:
        rows = [join([block]) for block in q]
        found = list(_parts(rows, columns, cutter))
    if None in found:
        columns = [join([block]) for block in kv]
        found = list(_parts(rows, columns, cutter))
    return [call for calls in found for call in calls or ()]


def in_turn(blocks: Sequence[Ranges]) -> Ranges:
    """The ranges of some blocks in turn, as one where each goes on where the last one ends."""
    found = list[range]()
    for part in chain.from_iterable(blocks):
        if found and _goes_on(found[-1], part):
            found[-1] = range(found[-1].start, part.stop, part.step)
        else:
            found.append(part)
    return tuple(found)


def _goes_on(last: range, part: range) -> bool:
    """Whether both are one range; of single positions the step says nothing."""
    step = part.step
    return last.step == step and last[-1] + step == part.start and len(last) + len(part) > 2


def joined(blocks: Sequence[Ranges]) -> Positions:
    """The positions of some blocks in turn, each block's ascending; a range where they are one."""
    parts = [part for block in blocks for part in block]
    if len(parts) == 1 and parts[0].step > 0:
        return parts[0]
    steps = {part.step for part in parts}
    if steps == {1} and all(a.stop == b.start for a, b in pairwise(parts)):
        return range(parts[0].start, parts[-1].stop)
    return np.concatenate([merge(block) for block in blocks])


def _parts(
    rows: Sequence[Positions], columns: Sequence[Positions], cutter: Cutter
) -> Iterator[list[Call] | None]:
    """The calls of each part of a rectangle, None where it cannot be taken as it is."""
    row = 0
    for q in rows:
        column = 0
        for kv in columns:
            if _falls(q) or _falls(kv):
                yield None
            else:
                calls = cutter(q, kv)
                yield calls and [_moved(call, row, column) for call in calls]
            column += _count(kv)
        row += _count(q)


def _array(positions: range | Ints) -> Ints:
    return merge((positions,)) if isinstance(positions, range) else positions


def _count(positions: Positions) -> int:
    return sum(map(len, positions)) if isinstance(positions, tuple) else len(positions)


def _falls(positions: Positions) -> bool:
    """Whether positions do not ascend throughout."""
    if isinstance(positions, tuple):
        return any(a[-1] > b[0] for a, b in pairwise(positions))
    return not isinstance(positions, range) and bool((np.diff(positions) < 0).any())


def _before(positions: range | Ints, ends: Ints) -> Ints:
    """How many of ascending positions come before each of some ends."""
    if isinstance(positions, range):
        found: Ints = -((positions.start - ends) // positions.step)
        return found.clip(0, len(positions))
    return np.searchsorted(positions, ends)


def _moved(call: Call, row: int, column: int) -> Call:
    (a, b), (c, d) = call.rows, call.columns
    return call._replace(rows=(a + row, b + row), columns=(c + column, d + column))


def causal_calls(q: Ranges, kv: Ranges) -> list[Call] | None:
    """The calls of a causal rectangle, None where its diagonal is not one straight line.

    q, kv: ascending ranges in turn, all of the same step.
    """
    line, rows = ramp(q, kv), _count(q)
    if line is None:
        return None
    top, low, high = line
    return list(_triangle(0, low, high, top, rows)) if top < rows else []


def _full(rows: tuple[int, int], columns: tuple[int, int]) -> Call:
    return Call(rows, columns, rows[1] - rows[0], "full")


def _triangle(low: int, left: int, right: int, row: int, end: int) -> Iterator[Call]:
    """The first row sees the columns low..left - 1, each next one more, up to right - 1."""
    if left == right:
        yield _full((row, end), (low, left))
        return
    square = right - left + 1
    if left - low > 1:
        yield _full((row, end), (low, left - 1))
    yield Call((row, row + square), (left - 1, right), square, "causal")
    if row + square < end:
        yield _full((row + square, end), (left - 1, right))


def mask_calls(q: Ints, kv: range | Ints, boxes: Ints) -> list[Call]:
    """The calls of a rectangle under any mask."""
    spans = _seen(q, kv, boxes)
    exact = [call for first, last in spans for call in _box(first, last, 0)]
    whole = [
        call
        for row in range(0, len(q), TILE)
        for call in _union([(f[row : row + TILE], n[row : row + TILE]) for f, n in spans], row)
    ]
    return min(exact, whole, key=_cost)


def _cost(calls: list[Call]) -> int:
    """Pairs that the calls look at, more for each call; masked pairs count double."""
    return sum(EACH + c.height * c.width * (1 + (c.kind == "masked")) for c in calls)


def _seen(q: Ints, kv: range | Ints, boxes: Ints) -> list[tuple[Ints, Ints]]:
    """Per box that is met, the columns first <= c < last that each row sees of it."""
    found = []
    for i0, i1, j0, j1, lo, hi in boxes:
        inside = (q >= i0) & (q < i1)
        first = _before(kv, np.maximum(j0, q + lo))
        last = _before(kv, np.minimum(j1, q + hi + 1))
        if (inside & (first < last)).any():
            found.append((first * inside, np.maximum(first, last) * inside))
    return found


def _box(first: Ints, last: Ints, row: int) -> Iterator[Call]:
    """The calls of one box cut by a band, of whose rows the first is row `row`."""
    seen = np.flatnonzero(first < last)
    if not len(seen):
        return
    if seen[-1] - seen[0] == len(seen) - 1:
        yield from _stair(first[seen], last[seen], row + int(seen[0]))
    else:
        yield from _union([(first, last)], row)


def _stair(first: Ints, last: Ints, row: int) -> Iterator[Call]:
    """The calls of rows that all see something, the first of them being row `row`."""
    end = row + len(first)
    low, high, left, right = (int(n) for n in (first.min(), first.max(), last.min(), last.max()))
    straight = low == high and (last == (left + np.arange(len(last))).clip(max=right)).all()
    if straight:
        yield from _triangle(low, left, right, row, end)
    elif low == high and left == right:
        yield _full((row, end), (low, left))
    elif len(first) > TILE:
        for a in range(0, len(first), TILE):
            yield from _stair(first[a : a + TILE], last[a : a + TILE], row + a)
    elif left - high > TILE // 4:  # what every row sees needs no mask
        yield _full((row, end), (high, left))
        yield from _box(first, np.full_like(first, high), row)
        yield from _box(np.full_like(last, left), last, row)
    else:
        yield Call((row, end), (low, right), end - row, "masked")


def _union(spans: list[tuple[Ints, Ints]], row: int) -> Iterator[Call]:
    """At most one call, for the rows from `row` on that see anything of several boxes."""
    if not spans:
        return
    first, last = (np.stack([span[i] for span in spans]) for i in (0, 1))
    some = first < last
    seen = np.flatnonzero(some.any(axis=0))
    if not len(seen):
        return
    rows = row + int(seen[0]), row + int(seen[-1]) + 1
    columns = int(first[some].min()), int(last[some].max())
    alike = (some.sum(axis=0)[seen] == 1).all() and all(
        len(np.unique(edge[some])) == 1 for edge in (first, last)
    )
    yield Call(rows, columns, len(seen), "full" if alike else "masked")
