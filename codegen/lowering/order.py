"""Says what an exchange brings: which heads, and whether in the order of the sequence."""

from dataclasses import replace

import numpy as np

from ringloom.planner.errors import PlanError
from ringloom.planner.loops.expand import Expansion
from ringloom.planner.loops.form import OWN, Attend, Ends, Exchange, Ints
from ringloom.planner.partitions import Side


def swapped(rows: Expansion, exchange: Exchange) -> tuple[Ends | None, int]:
    """The slices of heads that a swap takes, None for all, and the distance between them.

    Raises PlanError unless rank after rank gets equally many heads of them.
    """
    if copies(rows, exchange) > 1:
        return None, 1
    slices, size = rows.plan.partition.side(exchange.side).slices, rows.loops.mesh[exchange.axis]
    assert exchange.heads
    low, high = exchange.heads
    by, width = low.axes[exchange.axis], high.constant - low.constant + 1
    unit = tuple(by * (n == exchange.axis) for n in range(len(low.axes)))
    clock = replace(low, constant=0, axes=())
    plain = all(replace(e, constant=0) == replace(clock, axes=unit) for e in exchange.heads)
    plain &= not (low.modulo or low.table)
    if len({*map(len, slices)}) > 1 or not plain or by < width or (by > width > 1):
        raise PlanError(f"{len(slices)} slices of heads are swapped among {size} ranks")
    last = high.constant + by * (size - 1)
    if by == width and last - low.constant + 1 == len(slices):
        return None, 1
    ends = replace(clock, constant=low.constant), replace(clock, constant=last)
    return ends, by if by > width else 1


def copies(rows: Expansion, exchange: Exchange) -> int:
    """The ranks beside each other that get the same slice of heads, of fewer than ranks."""
    slices, size = rows.plan.partition.side(exchange.side).slices, rows.loops.mesh[exchange.axis]
    many, rest = divmod(size, len(slices))
    shared = tuple(n // max(1, many) for n in range(size))
    return many if not rest and all(e.table == shared for e in exchange.heads or ()) else 1


def sorts(rows: Expansion, exchange: Exchange) -> bool:
    """True if tokens come in another order, and an attend does not take all of all of them.

    Tokens of ranks that interleave stay one rank after the other, as tiles are cut of stripes;
    raises PlanError where a kernel takes them in the order of the sequence.
    """
    attends = [s for s in rows.loops.statements if isinstance(s, Attend)]
    if all(s.kind == "full" and not any(p.pieces for p in (*s.q, *s.kv)) for s in attends):
        return False
    side = rows.plan.partition.side(exchange.side)
    if scattered(side):
        return False  # tiles are cut wherever they lie
    if interleave(side):
        if any(s.kind in ("causal", "strict") for s in attends):
            raise PlanError("a causal kernel needs tokens in order, and those gathered interleave")
        return False
    chunks = _brought(rows, exchange)
    return bool((np.diff(chunks, axis=1) < 0).any())


def interleave(side: Side) -> bool:
    """True if pieces of a side are no ranges of the sequence."""
    return any(len(c) != 1 or c[0].step != 1 for c in side.chunks)


def scattered(side: Side) -> bool:
    """True if pieces of a side are counted in another order than that of the sequence."""
    starts = [c[0].start for c in side.chunks if c]
    return starts != sorted(starts)


def _brought(rows: Expansion, exchange: Exchange) -> Ints:
    """The sets of positions that come to each rank, rank after rank: [ranks, n]."""
    mesh, axis = rows.loops.mesh, exchange.axis
    cube = np.moveaxis(_sent(rows, exchange).reshape(*mesh, -1), axis, -2)
    lines = cube.reshape(*cube.shape[:-2], 1, -1).repeat(mesh[axis], axis=-2)
    return np.asarray(np.moveaxis(lines, -2, axis).reshape(rows.plan.ranks, -1))


def _sent(rows: Expansion, exchange: Exchange) -> Ints:
    """The sets of positions that each rank sends: its own, or all that another exchange brought."""
    name = exchange.part.value
    if name != OWN:
        if (before := rows.loops.exchanges.get(name)) is None:
            raise PlanError(f"what is exchanged is {name}, which no exchange brought")
        return np.sort(_brought(rows, before), axis=1)
    side = rows.plan.partition.side(exchange.side)
    table = rows.values[exchange.side].named[OWN, None].table.max(axis=2)  # any heads
    if (table < 0).any():
        raise PlanError("ranks that exchange pieces own different numbers of them")
    return np.asarray(side.chunk[table])
