"""Cuts a rectangle of queries and keys into the kernel calls that a mask of boxes leaves of it."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from math import lcm

SEQ = KV_SEQ = 1
BOXES: tuple[tuple[int, ...], ...] = ()


def triangles(pieces: Sequence[range]) -> Iterator[tuple[slice, slice, bool]]:
    """Each piece of the queries meets all keys before it, and its own up to the diagonal."""
    first = 0
    for piece in pieces:
        rows, first = slice(first, first + len(piece)), first + len(piece)
        if piece.start:
            yield rows, slice(piece.start), False
        yield rows, slice(piece.start, piece.stop), True


# ---- Tiles: the mask is a union of boxes i0 <= i < i1, j0 <= j < j1 cut by lo <= j - i <= hi.

Band = bool | tuple[int, int]
Call = tuple[slice, slice, Band]
Run = tuple[range, range]


@cache
def tiles(queries: tuple[range, ...], keys: tuple[range, ...]) -> list[Call]:
    """Cut the rectangle of some queries and keys into kernel calls (rows, cols, band).

    queries, keys: positions in the order of the rows and columns. band is False where every row
    sees every column, True where row r sees columns 0..r, (lo, hi) where it sees r + lo..r + hi.
    """
    aligned = [range(x.start + KV_SEQ - SEQ, x.stop + KV_SEQ - SEQ, x.step) for x in queries]
    pairs = [(rows, cols) for rows in runs(aligned) for cols in runs(keys)]
    return [call for rows, cols in pairs for box in BOXES for call in calls(rows, cols, box)]


def runs(positions: Iterable[range]) -> list[Run]:
    """Pairs (rows, their positions), joined where one range goes on where the last one ended."""
    joined, first = list[Run](), 0
    for x in filter(len, positions):
        run = range(first, first + len(x)), x
        if joined and joined[-1][1].step == x.step and joined[-1][1][-1] + x.step == x.start:
            rows, before = joined.pop()
            run = range(rows.start, first + len(x)), range(before.start, x.stop, x.step)
        joined.append(run)
        first += len(x)
    return joined


def calls(rows: Run, cols: Run, box: tuple[int, ...]) -> Iterator[Call]:
    """The kernel calls of one box."""
    i0, i1, j0, j1, lo, hi = box
    rows, cols = between(rows, i0, i1), between(cols, j0, j1)
    i, j = rows[1], cols[1]
    if not (i and j) or j[-1] - i[0] < lo or j[0] - i[-1] > hi:
        return
    if lo <= j[0] - i[-1] and j[-1] - i[0] <= hi:
        yield whole(rows), whole(cols), False
    elif i.step != j.step and len(i) > 1 < len(j):
        step = lcm(i.step, j.step)
        parts = ((x, y) for x in every(rows, step) for y in every(cols, step))
        yield from (call for x, y in parts for call in calls(x, y, box))
    else:
        step, ahead = (i if len(i) > 1 else j).step, j[0] - i[0]
        yield from banded(rows, cols, -((ahead - lo) // step), (hi - ahead) // step)


def banded(rows: Run, cols: Run, lo: int, hi: int) -> Iterator[Call]:
    """The kernel calls in which row r sees columns r + lo..r + hi, as far as there are any."""
    height, width = len(rows[1]), len(cols[1])
    top, left = max(0, -hi), max(0, lo)
    rows = part(rows, top, min(height, width - lo))
    cols = part(cols, left, min(width, height + hi))
    height, width, lo, hi = len(rows[1]), len(cols[1]), lo + top - left, hi + top - left
    if lo > hi or not height or not width:
        return
    if lo > 1 - height:
        yield from strips(rows, cols, lo, hi)
        return
    if hi >= width - 1:
        yield whole(rows), whole(cols), False
        return
    square = width - hi  # a triangle; all see what is left of it, and rows below it see it all
    if hi > 0:
        yield whole(rows), whole(part(cols, 0, hi)), False
    yield whole(part(rows, 0, square)), whole(part(cols, hi, width)), True
    if square < height:
        yield whole(part(rows, square, height)), whole(part(cols, hi, width)), False


def strips(rows: Run, cols: Run, lo: int, hi: int) -> Iterator[Call]:
    """The kernel calls of a window: as many rows at a time as it is wide, with what they see."""
    height, width = len(rows[1]), len(cols[1])
    step = max(1024, hi - lo + 1)
    for top in range(0, height, step):
        bottom = min(height, top + step)
        left, right = max(0, top + lo), min(width, bottom + hi)
        ahead = top - left
        yield (
            whole(part(rows, top, bottom)),
            whole(part(cols, left, right)),
            (lo + ahead, hi + ahead),
        )


def between(run: Run, low: int, high: int) -> Run:
    """The part of a run at positions low..high - 1."""
    x = run[1]
    first, last = (min(max(-((x.start - end) // x.step), 0), len(x)) for end in (low, high))
    return part(run, first, last)


def part(run: Run, first: int, last: int) -> Run:
    """The part of a run from one of its entries to another."""
    return run[0][first:last], run[1][first:last]


def every(run: Run, step: int) -> list[Run]:
    """A run as interleaved ones of a larger step."""
    n = step // run[1].step
    return [(run[0][first::n], run[1][first::n]) for first in range(min(n, len(run[1])))]


def whole(run: Run) -> slice:
    """The rows of a run as a slice."""
    return slice(run[0].start, run[0].stop, run[0].step)
