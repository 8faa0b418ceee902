"""place_of(...)   finds the owners of a value's tokens, as formulas for their coordinates."""

from collections.abc import Sequence

import numpy as np

from ringloom.codegen.ir import Place
from ringloom.planner.errors import PlanError
from ringloom.planner.loops.expand import Expansion
from ringloom.planner.loops.form import OWN, Ends, Expr, Ints, Part

Readers = tuple[int, Ints]  # a step, and the ranks that read a value in it


def place_of(
    rows: Expansion, side: str, part: Part, readers: Sequence[Readers], is_sorted: bool
) -> Place:
    """Returns the owners of the tokens of a part, relative to the ranks that read it.

    `is_sorted`: an exchange has sorted the tokens by position. Raises PlanError if no formula gives
    the owners.
    """
    owners = rows.plan.partition.side(side).owners
    numbers = _piece_numbers(rows, side)
    own = rows.values[side].named[OWN, None].table
    distances, pieces = list[tuple[int, Ints]](), set[tuple[int, ...]]()
    coordinates = rows.coordinates[:, :-1]
    for t, ranks in readers:
        blocks = _blocks(rows, side, part, t, ranks)
        present = blocks >= 0
        sources = np.where(present, owners[blocks], owners[blocks[:, :1]])
        distances.append((t, coordinates[sources] - coordinates[ranks][:, None]))
        numbered = zip(numbers[blocks], present, strict=True)
        pieces |= {tuple(sorted({*row[on].tolist()})) for row, on in numbered}
    at = tuple(_coordinate(distances, n, rows.loops.mesh) for n in range(len(rows.loops.mesh)))
    if not is_sorted and at.count(None) > 1:
        raise PlanError("tokens gathered along several axes are in no order")
    return Place(at, _ends(pieces, own.shape[1]), is_sorted and None in at)


def _piece_numbers(rows: Expansion, side: str) -> Ints:
    """Numbers the pieces of each owner from 0: [blocks]."""
    numbers = np.zeros(len(rows.plan.partition.side(side)), np.intp)
    own = rows.values[side].named[OWN, None].table
    rank, piece, head = np.nonzero(own >= 0)
    numbers[own[rank, piece, head]] = piece
    return numbers


def _blocks(rows: Expansion, side: str, part: Part, t: int, ranks: Ints) -> Ints:
    """Returns a block of each set of positions that ranks read, then -1: [n, pieces]."""
    table = rows.value(part, side, t).table[ranks]
    sliced = Part(part.value, part.lag, part.pieces)
    blocks = rows.blocks(sliced, side, t, ranks).reshape(len(ranks), -1, table.shape[2]).max(axis=2)
    return np.take_along_axis(blocks, np.argsort(blocks < 0, axis=1, kind="stable"), axis=1)


def _coordinate(
    distances: Sequence[tuple[int, Ints]], axis: int, mesh: tuple[int, ...]
) -> Expr | None:
    """Returns a coordinate of the owners, or None for all ranks along the axis."""
    gaps = {t: x[:, :, axis] % mesh[axis] for t, x in distances}
    if all((np.diff(np.sort(gap, axis=1)) == 0).all() for gap in gaps.values()):
        return _distance({t: np.unique(gap) for t, gap in gaps.items()}, axis, mesh)
    if all(len(np.unique(row)) == mesh[axis] for gap in gaps.values() for row in gap):
        return None
    raise PlanError("a value has tokens from only some ranks along an axis")


def _distance(gaps: dict[int, Ints], axis: int, mesh: tuple[int, ...]) -> Expr:
    """Returns a formula of the step for the distance to an owner, modulo the axis size."""
    size, periods = mesh[axis], mesh[1:]
    if any(len(gap) > 1 for gap in gaps.values()):
        raise PlanError("no formula gives the owners of the tokens that ranks read in a step")
    steps, unit = np.array(sorted(gaps)), (*[0] * axis, 1)
    values = np.array([int(gaps[t][0]) for t in steps.tolist()])
    for period, phase in ((p, phase) for p in (1, *periods) for phase in range(p)):
        clock = (steps - phase) // period
        for slope in sorted(range(-size // 2 + 1, size // 2 + 1), key=abs):
            first = int(values[0] - slope * clock[0]) % size
            if ((first + slope * clock - values) % size == 0).all():
                return Expr(first, slope, unit, 0, (), period, phase)
    raise PlanError("no formula gives the owners of the tokens that are read in each step")


def _ends(pieces: set[tuple[int, ...]], total: int) -> Ends | None:
    """Returns the first and last of an owner's pieces that are read, or None for all."""
    if len(pieces) > 1:
        raise PlanError("no formula gives the pieces that are read in each step")
    (numbers,) = pieces
    first, last = numbers[0], numbers[-1]
    if numbers != tuple(range(first, last + 1)):
        raise PlanError("pieces that are read together are not adjacent")
    return None if last - first + 1 == total else (Expr(first), Expr(last))
