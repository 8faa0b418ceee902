"""place_of(...)   whose tokens a value is, as coordinates of their owners: data, and no lists."""

from collections.abc import Sequence

import numpy as np

from ringloom.codegen.ir import Place
from ringloom.planner.errors import PlanError
from ringloom.planner.loops.expand import Expansion
from ringloom.planner.loops.form import OWN, Ends, Expr, Ints, Part

Seen = tuple[int, Ints]  # a step, and the ranks that read a value in it


def place_of(rows: Expansion, side: str, part: Part, seen: Sequence[Seen], in_order: bool) -> Place:
    """The owners of the tokens of a part where it is read, as far away from all ranks.

    `in_order`: an exchange has brought them into the order of the sequence.
    Raises PlanError where whose tokens these are follows no formula.
    """
    owners = rows.plan.partition.side(side).owners
    numbers = piece_numbers(rows, side)
    own = rows.values[side].named[OWN, None].table
    away, pieces = list[tuple[int, Ints]](), set[tuple[int, ...]]()
    for t, ranks in seen:
        blocks = _tokens(rows, side, part, t, ranks)
        here = blocks >= 0
        of = np.where(here, owners[blocks], owners[blocks[:, :1]])
        away.append((t, rows.coordinates[of][:, :, :-1] - rows.coordinates[ranks][:, None, :-1]))
        each = zip(numbers[blocks], here, strict=True)
        pieces |= {tuple(sorted({*row[on].tolist()})) for row, on in each}
    at = tuple(_along(away, axis, rows.loops.mesh) for axis in range(len(rows.loops.mesh)))
    if not in_order and sum(along is None for along in at) > 1:
        raise PlanError("tokens of ranks along several axes are in no order")
    return Place(at, _ends(pieces, own.shape[1]), in_order and None in at)


def piece_numbers(rows: Expansion, side: str) -> Ints:
    """Which piece of its owner each block is, counted from 0: [blocks]."""
    numbers = np.zeros(len(rows.plan.partition.side(side)), np.intp)
    own = rows.values[side].named[OWN, None].table
    rank, piece, head = np.nonzero(own >= 0)
    numbers[own[rank, piece, head]] = piece
    return numbers


def _tokens(rows: Expansion, side: str, part: Part, t: int, ranks: Ints) -> Ints:
    """A block of each set of positions that ranks read, -1 behind them: [n, pieces]."""
    table = rows.value(part, side, t).table[ranks]
    sliced = Part(part.value, part.lag, part.pieces)
    blocks = rows.blocks(sliced, side, t, ranks).reshape(len(ranks), -1, table.shape[2]).max(axis=2)
    return np.take_along_axis(blocks, np.argsort(blocks < 0, axis=1, kind="stable"), axis=1)


def _along(away: Sequence[tuple[int, Ints]], axis: int, mesh: tuple[int, ...]) -> Expr | None:
    """A coordinate of the owners, None for all of an axis."""
    gaps = {t: x[:, :, axis] % mesh[axis] for t, x in away}
    if all((np.diff(np.sort(gap, axis=1)) == 0).all() for gap in gaps.values()):
        return _moving({t: np.unique(gap) for t, gap in gaps.items()}, axis, mesh)
    if all(len(np.unique(row)) == mesh[axis] for gap in gaps.values() for row in gap):
        return None
    raise PlanError("a value has the tokens of a part of an axis")


def _moving(gaps: dict[int, Ints], axis: int, mesh: tuple[int, ...]) -> Expr:
    """The distance to an owner as a formula of the step; modulo the size of the axis."""
    size, periods = mesh[axis], mesh[1:]
    if any(len(gap) > 1 for gap in gaps.values()):
        raise PlanError("whose tokens come to a rank in a step follows no formula")
    steps, unit = np.array(sorted(gaps)), (*[0] * axis, 1)
    values = np.array([int(gaps[t][0]) for t in steps.tolist()])
    for period, phase in ((p, phase) for p in (1, *periods) for phase in range(p)):
        clock = (steps - phase) // period
        for slope in sorted(range(-size // 2 + 1, size // 2 + 1), key=abs):
            first = int(values[0] - slope * clock[0]) % size
            if ((first + slope * clock - values) % size == 0).all():
                return Expr(first, slope, unit, 0, (), period, phase)
    raise PlanError("whose tokens come in a step follows no formula")


def _ends(pieces: set[tuple[int, ...]], most: int) -> Ends | None:
    """First and last of an owner's pieces that are read, None for all of them."""
    if len(pieces) > 1:
        raise PlanError("which pieces of their owners come in a step follows no formula")
    (numbers,) = pieces
    first, last = numbers[0], numbers[-1]
    if numbers != tuple(range(first, last + 1)):
        raise PlanError("pieces that come together are not beside each other")
    return None if last - first + 1 == most else (Expr(first), Expr(last))
