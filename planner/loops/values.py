"""Values: the blocks that a name stands for on each rank, by piece and head: [ranks, p, h].

Pieces are the distinct sets of positions that a rank has, in block order; heads the slices of
them, counted from the lowest that it has. -1 stands for nothing. Rows of a step are columns:
messages by tensors, and rectangles.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.columns import flat, twice
from planner.ir import Plan, Step
from planner.loops.form import Ints, Part
from planner.partitions import Side

FAR = 1 << 30
Bools = NDArray[np.bool_]
Pairs = tuple[Ints, Ints]  # src [n], dst [n]
Copies = tuple[Ints, Ints]  # rank [n], blocks [n, w]
Messages = tuple[Ints, Ints, Ints]  # src [n], dst [n], blocks [n, w]
Rectangles = tuple[Ints, Ints, Ints]  # rank [n], q [n, a], kv [n, b]


def pack(ranks: int, side: Side, rank: Ints, blocks: Ints) -> Ints:
    """The table of what each rank [n] has, from its blocks [n, w] in any order."""
    if len(side) == len(side.chunks) and _in_order(blocks) and not twice(rank):
        table = np.full((ranks, blocks.shape[1], 1), -1, np.int32)
        table[rank, :, 0] = blocks
        return table
    rank, block = flat(rank, blocks)
    if not len(block):
        return np.full((ranks, 1, 1), -1, np.int32)
    code = rank * len(side.chunks) + side.chunk[block]
    if (code[1:] <= code[:-1]).any():
        order = np.argsort(code, kind="stable")
        rank, block, code = rank[order], block[order], code[order]
    number = np.zeros(len(code), np.intp)  # of each different (rank, chunk)
    np.cumsum(code[1:] != code[:-1], out=number[1:])
    piece = number - number[np.searchsorted(rank, np.arange(ranks)).clip(max=len(rank) - 1)][rank]
    head = np.zeros(len(block), np.intp)
    if len(side.slices) > 1:
        low = np.full(ranks, FAR)
        np.minimum.at(low, rank, side.slice[block])
        head = side.slice[block] - low[rank]
    table = np.full((ranks, int(piece.max()) + 1, int(head.max()) + 1), -1, np.int32)
    table[rank, piece, head] = block
    return table


def _in_order(blocks: Ints) -> bool:
    """True if each row [w] ascends up to its absent blocks, and none is absent from all rows."""
    left, right = blocks[:, :-1], blocks[:, 1:]
    ascending = (right < 0) | ((left >= 0) & (right > left))
    return bool(ascending.all() and (blocks[:, -1:] >= 0).any())


def owned(ranks: int, side: Side) -> Ints:
    """Returns the blocks that each rank owns."""
    return pack(ranks, side, side.homes.astype(np.intp), np.arange(len(side))[:, None])


def held(plan: Plan, side: str) -> Ints | None:
    """Returns the blocks that each rank has from the start, and its own in rectangles of both."""
    copies = [h.flat() for h in plan.start if h.side == side]
    if not copies:
        return None
    blocks = plan.partition.side(side)
    here = np.zeros((plan.ranks, len(blocks)), np.bool_)
    for block, rank in copies:
        here[rank, block] = True
    kept = np.zeros_like(here)
    for _, attend in plan.attends():
        read = attend.q if side == "q" else attend.kv
        there = (read >= 0) & here[attend.rank[:, None], read]
        rows = there.any(axis=1) & ~there.all(axis=1)
        rank, block = flat(attend.rank[rows], read[rows])
        own = blocks.homes[block] == rank
        kept[rank[own], block[own]] = True
    rank, block = np.nonzero(here | kept)
    return pack(plan.ranks, blocks, rank, block[:, None])


def sliced(table: Ints, part: Part, t: int, where: Ints) -> Ints:
    """A part's pieces and heads of each row of a table, as the ranks at `where` say: [n, p x h]."""
    for axis, ends in ((1, part.pieces), (2, part.heads)):
        if ends is not None:
            i = np.arange(table.shape[axis])
            low, high = (e.at(t, where)[:, None] for e in ends)
            on: Bools = (i >= low) & (i <= high)
            table = np.where(on[:, :, None] if axis == 1 else on[:, None, :], table, -1)
    return table.reshape(len(table), table.shape[1] * table.shape[2])


def codes(messages: Messages, ranks: int, blocks: int) -> Ints:
    """One number for each (src, dst, block) that moves, ascending."""
    src, dst, table = messages
    pair, block = flat(src.astype(np.int64) * ranks + dst, table)
    return np.sort(pair * blocks + block)


@dataclass(frozen=True, slots=True)
class Rows:
    """The messages and rectangles of one step."""

    moves: dict[tuple[str, ...], Messages]
    attends: Rectangles | None


def rows_of(step: Step) -> Rows:
    """A step's nodes joined; int32 as they stand in the plan."""
    moves = dict[tuple[str, ...], list[Messages]]()
    for m in step.moves:
        moves.setdefault(m.tensors, []).append((m.src, m.dst, m.blocks))
    attends = [(a.rank, a.q, a.kv) for a in step.attends]
    return Rows({k: joined(v) for k, v in moves.items()}, joined(attends) if attends else None)


def joined(parts: list[tuple[Ints, Ints, Ints]]) -> tuple[Ints, Ints, Ints]:
    """Columns of several nodes as one."""
    if len(parts) == 1:
        return parts[0]
    first, second, third = zip(*parts, strict=True)
    return np.concatenate(first), stack(second), stack(third)


def together(parts: list[Copies]) -> Copies:
    """Copies from several messages as one."""
    if len(parts) == 1:
        return parts[0]
    rank, blocks = zip(*parts, strict=True)
    return np.concatenate(rank), stack(blocks)


def stack(tables: Sequence[Ints]) -> Ints:
    """Columns [n], or tables [n, w] of any widths filled with -1, one below the other."""
    if tables[0].ndim == 1:
        return np.concatenate(tables)
    width = max(t.shape[1] for t in tables)
    return np.concatenate([widened(t, width) for t in tables])


def widened(table: Ints, width: int) -> Ints:
    """A table [n, w] with columns of -1 up to a width."""
    if table.shape[1] == width:
        return table
    filled = np.full((len(table), width), -1, table.dtype)
    filled[:, : table.shape[1]] = table
    return filled


def ordered(blocks: Ints) -> Ints:
    """The blocks of each row in one order, absent ones last."""
    return -np.sort(-blocks, axis=1)


def same(a: Ints, b: Ints) -> bool:
    """True if rows hold the same blocks."""
    if a.shape == b.shape and (a == b).all():
        return True
    width = max(a.shape[1], b.shape[1])
    left, right = (
        np.pad(ordered(x), ((0, 0), (0, width - x.shape[1])), constant_values=-1) for x in (a, b)
    )
    return bool((left == right).all())
